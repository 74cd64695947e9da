//! `vos release`: brings the replicas of a volume up to date. How it is done is in `afs_admin::release`.

use super::backup::locate;
use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::codes::Code;
use crate::dates::date_of;
use crate::printer::{complain, say};
use afs_admin::Error;
use afs_admin::entry::{Kind, Site};
use afs_admin::release::{
    Event, FullBecause, Order, Plan, Reason, ReleaseFailure, SiteEvent, SiteStep, Step, release,
};
use afs_wire::abort::{VOLSERBADOP, VOLSERBADRELEASE};
use afs_wire::ids::{AfsTime, VolumeId};
use serde_json::{Value, json};

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let text = given.word("id").unwrap_or_default();
    let id = vos.known_volume_id(text, Stop::RETURNED, || format!("vos: can't find volume '{text}'"))?;
    if locate(vos, id, Stop::RETURNED)?.kind != Kind::ReadWrite {
        complain!(vos.printer, "{text} not a RW volume\n");
        return Err(Stop::RETURNED);
    }
    let order =
        Order { volume: VolumeId(id), is_full: given.has("force"), is_recloned: given.has("force-reclone") };
    let cancel = vos.cancel();
    let mut name = String::new();
    let mut server = None;
    let mut progress = None;
    let events = |event: Event<'_>| {
        progress = None;
        match (&event, server) {
            (Event::HasEntry(entry), _) => server = entry.read_write_site().map(|site| site.server),
            (Event::Site(SiteEvent::Sends { clone, .. }), Some(server)) => {
                progress = Some(vos.progress_of_sending(server, clone.0, None));
            }
            _ => {}
        }
        tell(vos, id, &mut name, &event);
    };
    let released = vos.caller.run(release(&vos.vldb, &vos.volumes, order, cancel, events));
    match released {
        Ok(entry) => {
            say!(vos.printer, "Released volume {text} successfully\n");
            if vos.json {
                let sites: Vec<Value> = entry
                    .sites
                    .iter()
                    .filter(|site| site.is(Kind::ReadOnly))
                    .map(|site| json!({ "server": site.server.to_string(), "partition": site.partition.to_string() }))
                    .collect();
                vos.printer.say_json(&json!({ "released": id, "sites": sites }));
            }
            Ok(())
        }
        Err(failure) => {
            let code = complain_of(vos, id, &failure);
            vos.print_error(code);
            vos.print_diagnostics("release", code);
            Err(Stop::RETURNED)
        }
    }
}

fn tell(vos: &Vos, id: u32, name: &mut String, event: &Event<'_>) {
    match event {
        Event::HasEntry(entry) => {
            name.clone_from(&entry.name);
            if vos.verbose {
                vos.show_entry(entry);
            }
        }
        Event::HasPlan(plan) => vos.tell(&plan_in_words(id, plan)),
        Event::HasChanged(false) => vos.tell("RW vol has not changed; only releasing to new RO sites\n"),
        Event::HasChanged(true) => vos.tell("RW vol has changed; releasing to all sites\n"),
        Event::Begins(Step::ReplaceSecond(_)) => vos.tell(&format!("Replacing VLDB entry for {name}...")),
        Event::IsDone(Step::ReplaceSecond(_)) => vos.tell(" done\n"),
        Event::Begins(step) => {
            if let Some(text) = doing(*step) {
                vos.tell(&text);
            }
        }
        Event::IsDone(step) => {
            if doing(*step).is_some() {
                vos.tell(" done\n");
            }
        }
        Event::Site(event) => tell_of_site(vos, event),
    }
}

fn plan_in_words(id: u32, plan: &Plan) -> String {
    if !plan.is_complete {
        return "This is a recovery of previously failed release\n".to_owned();
    }
    let words: Vec<String> = plan
        .reasons
        .iter()
        .map(|reason| match reason {
            Reason::Forced => "forced".to_owned(),
            Reason::LastIsComplete => "last ok".to_owned(),
            Reason::AllAreNew => "all sites are new".to_owned(),
            Reason::SourceWasReplaced(id) => format!("rw {id} changed"),
            Reason::CloneIsMissing => "ro clone missing".to_owned(),
        })
        .collect();
    let reasons = match &plan.reasons[..] {
        [Reason::LastIsComplete] => String::new(),
        _ => format!(" ({})", words.join(", ")),
    };
    let then = if plan.may_be_new_only {
        "There are new RO sites; we will try to only release to new sites\nQuerying old RO sites for update times...\n"
    } else {
        ""
    };
    format!("This is a complete release of volume {id}{reasons}\n{then}")
}

fn doing(step: Step) -> Option<String> {
    let clone_of = |is_replica| if is_replica { "permanent RO" } else { "temporary RO" };
    Some(match step {
        Step::Clone { clone, is_replica } => {
            format!("Creating a new {} clone {clone} ...", clone_of(is_replica))
        }
        Step::Reclone { clone, is_replica } => {
            format!("Re-cloning {} volume {clone} ...", clone_of(is_replica))
        }
        Step::GetSourceStatus(id) => format!("Getting status of parent volume {id}..."),
        Step::BeginReplica(id) => format!("Starting transaction on RO clone volume {id}..."),
        Step::BringOnline(id) => format!("Setting volume flags for volume {id}..."),
        Step::EndReplica(id) => format!("Ending transaction on volume {id}..."),
        Step::BeginClone(id) => format!("Starting transaction on cloned volume {id}..."),
        Step::ReplaceLast(_) => "updating VLDB ...".to_owned(),
        Step::Lock(_)
        | Step::FetchEntry(_)
        | Step::CheckName(_)
        | Step::CheckKind(_)
        | Step::CheckSites(_)
        | Step::TakeId(_)
        | Step::ReplaceFirst(_)
        | Step::Look(_)
        | Step::RemoveOldClone(_)
        | Step::BeginSource(_)
        | Step::EndSource(_)
        | Step::ReplaceSecond(_)
        | Step::GetCloneStatus(_)
        | Step::Send(_)
        | Step::EndClone(_)
        | Step::Sites(_)
        | Step::RemoveClone(_)
        | Step::ReplaceEntry(_)
        | Step::Unlock(_) => return None,
    })
}

fn tell_of_site(vos: &Vos, event: &SiteEvent<'_>) {
    match event {
        SiteEvent::IsMade(site, id) => {
            let host = vos.host(site.server);
            vos.tell(&format!("Creating new volume {id} on replication site {host}:  done\n"));
        }
        SiteEvent::IsThere(site, id) => {
            let host = vos.host(site.server);
            vos.tell(&format!("Updating existing ro volume {id} on {host} ...\n"));
        }
        SiteEvent::GetsAll(because) => {
            let because = match because {
                FullBecause::Forced => "forced",
                FullBecause::SiteIsNew => "read-only volume needs be created for new site",
                FullBecause::LastFailed => "previous release failed",
                FullBecause::WasMade => "read-only volume needs to be created",
                FullBecause::SourceWasReplaced => "read-write volume was replaced",
            };
            vos.tell(&format!("This will be a full dump: {because}\n"));
        }
        SiteEvent::Sends { clone, to, sites, since } => {
            let hosts: Vec<String> = sites.iter().map(|site| vos.host(site.server)).collect();
            let how = match since {
                AfsTime(0) => " (entire volume).\n".to_owned(),
                AfsTime(since) => format!(" (as of {}).\n", date_of((*since).into(), &vos.zone)),
            };
            vos.tell(&format!("Starting ForwardMulti from {clone} to {to} on {}{how}", hosts.join(" and ")));
        }
        SiteEvent::HasFailed(_, step, error) => {
            let code = Code(error.code().0);
            let what = match step {
                SiteStep::RemoveUnused => "Failed to delete RO_DONTUSE site: ",
                SiteStep::Begin => "Failed to start a transaction on the RO volume.",
                SiteStep::Make => "Failed to create the ro volume: ",
                SiteStep::SetState => "Failed to set flags on the ro volume: ",
                SiteStep::GetStatus => "Failed to get status of volume on destination: ",
                SiteStep::Send => "Failed to dump volume from clone to a ro site: ",
                SiteStep::SetIdentity => "Failed to set correct names and ids: ",
                SiteStep::BringOnline => "Failed to set flags on ro volume: ",
                SiteStep::End => "Could not end transaction on a ro volume: ",
            };
            match error {
                Error::Local { code: VOLSERBADOP, .. } => complain!(vos.printer, "{what}\nvos: {error}\n"),
                _ => vos.print_failure(code, &format!("{what}\n")),
            }
        }
    }
}

/// Says what failed, in the words of OpenAFS's, and which sites have the old release.
fn complain_of(vos: &Vos, id: u32, failure: &ReleaseFailure) -> Code {
    let code = Code(failure.error.code().0);
    let plain = |text: String| vos.printer.complain(&text);
    if let Error::Cancelled = failure.error {
        plain(format!("\nvos: {}\n", failure.error));
    } else {
        complain_of_step(vos, id, failure.step, &failure.error, code);
    }
    if !failure.missing.is_empty() {
        let count = failure.missing.len();
        plain(format!("The volume {id} could not be released to the following {count} sites:\n"));
        failure.missing.iter().for_each(|site| plain(site_in_list(vos, site)));
    }
    if failure.not_unlocked.is_some() {
        plain(format!("Could not release lock on the VLDB entry for volume {id}\n"));
    }
    match failure.missing.is_empty() {
        true => code,
        false => Code(VOLSERBADRELEASE.0),
    }
}

fn site_in_list(vos: &Vos, site: &Site) -> String {
    format!("\t{:>35} {}\n", vos.host(site.server), site.partition)
}

fn complain_of_step(vos: &Vos, id: u32, step: Step, error: &Error, code: Code) {
    let plain = |text: String| vos.printer.complain(&text);
    let failure = |text: String| vos.print_failure(code, &text);
    match step {
        Step::Lock(_) => plain(format!("Could not lock the VLDB entry for the volume {id}.\n")),
        Step::FetchEntry(_) => {
            plain(format!("Could not fetch the entry for the volume {id} from the VLDB.\n"))
        }
        Step::CheckName(_) => plain(format!("vos: {error}: rename the volume before releasing it\n")),
        Step::CheckKind(_) => plain(format!("The volume {id} being released is not a read-write volume.\n")),
        Step::CheckSites(_) => {
            plain(format!("Volume {id} has no replicas - release operation is meaningless!\n"));
        }
        Step::TakeId(_) => failure(format!("Cant allocate ID for RO volume of {id}\n")),
        Step::ReplaceFirst(_) | Step::ReplaceSecond(_) | Step::ReplaceEntry(_) | Step::ReplaceLast(_) => {
            failure(format!(" Could not update VLDB entry for volume {id}\n"));
        }
        Step::Look(_) => failure(format!("Could not fetch information about volume {id}\n")),
        Step::RemoveOldClone(clone) => failure(format!("Failed to delete volume {clone}.\n")),
        Step::BeginSource(_) => failure(format!("Failed to start transaction on RW volume {id}\n")),
        Step::Clone { .. } => failure(format!("Failed to clone the volume {id}\n")),
        Step::Reclone { clone, .. } => failure(format!("Could not re-clone the volume {clone}\n")),
        Step::GetSourceStatus(_) => failure(format!("Failed to get the status of the parent volume {id}\n")),
        Step::EndSource(_) => failure(format!("Failed to end transaction on RW volume {id}\n")),
        Step::BeginReplica(clone) | Step::EndReplica(clone) => {
            failure(format!("Failed to start transaction on volume {clone}\n"));
        }
        Step::BringOnline(clone) => failure(format!("Could not bring volume {clone} on line\n")),
        Step::BeginClone(_) if code == Code::VOLSERNOVOL => {
            plain(format!("Old clone is inaccessible. Try vos release -f {id}.\n"));
        }
        Step::BeginClone(_) => failure("Failed to create transaction on the release clone\n".to_owned()),
        Step::GetCloneStatus(clone) => failure(format!("Failed to get the status of RW clone {clone}\n")),
        Step::Send(_) => failure("Failed to dump volume from clone to a ro site: \n".to_owned()),
        Step::EndClone(clone) => failure(format!("Failed to end transaction on RW clone {clone}\n")),
        // The sites are listed.
        Step::Sites(_) => {}
        Step::RemoveClone(clone) => failure(format!("Failed to delete volume {clone}.\n")),
        Step::Unlock(_) => failure(format!("Could not release lock on the VLDB entry for volume {id}\n")),
    }
}
