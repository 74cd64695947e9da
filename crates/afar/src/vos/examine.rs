//! `vos examine`: all that servers know of a volume.

use super::show_volume::{Totals, level_of};
use super::snapshot::as_json;
use super::{Done, Stop, Vos, snapshot_limit};
use crate::classic::Given;
use crate::codes::Code;
use crate::printer::{complain, say};
use afs_admin::entry::{Entry, Kind, Site};
use afs_wire::afsvol::VOK;
use afs_wire::ids::{SecurityLevel, VolumeId};
use serde_json::{Value, json};

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let text = given.word("id").unwrap_or_default();
    let id = vos.known_volume_id(text, Stop::RETURNED, || format!("Unknown volume ID or name '{text}'"))?;
    vos.tell(&format!("Fetching VLDB entry for {id} .. "));
    let entry = vos.entry_by_id(id, None).map_err(|_| {
        complain!(vos.printer, "Could not fetch the entry for volume number {id} from VLDB \n");
        Stop::RETURNED
    })?;
    vos.tell("done\n");
    let form = match (given.has("extended"), given.has("format")) {
        (true, _) => Form::Extended,
        (false, true) => Form::Fields,
        (false, false) => Form::Paragraph,
    };
    let kind = entry.kind_of(VolumeId(id));
    let sites: Vec<Site> = match kind {
        Kind::ReadOnly => entry.sites.iter().filter(|site| site.is(Kind::ReadOnly)).copied().collect(),
        Kind::ReadWrite | Kind::Backup => entry.read_write_site().into_iter().collect(),
    };
    let mut done = Ok(());
    if sites.is_empty() {
        complain!(vos.printer, "Volume {text} does not exist in VLDB\n\n");
        done = Err(Stop::RETURNED);
    }
    let mut found = Vec::new();
    let mut has_shown_sites = false;
    let wanted = Wanted { text, id, kind, form };
    for site in sites {
        match examine(vos, &wanted, &entry, site, &mut found) {
            Ok(Shown { with_sites }) => has_shown_sites |= with_sites,
            Err(stop) => done = Err(stop),
        }
        // The database says that there is none, and one was found: that is a failure too.
        if kind == Kind::Backup && !entry.has(Kind::Backup) {
            done = Err(Stop::RETURNED);
        }
    }
    let home = entry.read_write_site().filter(|_| kind == Kind::ReadWrite);
    let snapshots = home.map_or(Vec::new(), |site| vos.all_snapshots(site, id));
    let limit = home.filter(|_| !snapshots.is_empty()).and_then(|site| vos.snapshot_limit(site, id));
    if vos.json {
        let mut said = json!({ "vldb": vos.entry_as_json(&entry), "volumes": found });
        if !snapshots.is_empty() {
            said["snapshots"] = snapshots.iter().map(as_json).collect();
            said["snapshot_limit"] = snapshot_limit::as_json(limit);
        }
        vos.printer.say_json(&said);
        return done;
    }
    if found.is_empty() {
        complain!(vos.printer, "Dump only information from VLDB\n\n");
        say!(vos.printer, "{} \n", entry.name);
    }
    if !has_shown_sites {
        vos.show_sites(&entry);
        vos.show_locks(&entry);
    }
    if let Some(site) = home {
        vos.show_snapshots(site, &snapshots, form == Form::Fields);
        limit.into_iter().for_each(|limit| vos.show_snapshot_limit(limit, form == Form::Fields));
    }
    done
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Paragraph,
    Extended,
    Fields,
}

/// The volume that the user asks for.
struct Wanted<'a> {
    text: &'a str,
    id: u32,
    kind: Kind,
    form: Form,
}

struct Shown {
    /// True if the sites of the entry were shown with it.
    with_sites: bool,
}

/// Shows the volume at one site.
fn examine(
    vos: &Vos,
    wanted: &Wanted<'_>,
    entry: &Entry,
    site: Site,
    found: &mut Vec<Value>,
) -> Result<Shown, Stop> {
    let Wanted { text, id, kind, form } = *wanted;
    let Site { server, partition, .. } = site;
    vos.tell(&format!("Getting volume listing from the server {} .. ", vos.resolved(server)));
    let mut totals = Totals::default();
    let shown = match form {
        Form::Extended => vos.volume_with_statistics(server, partition, id).and_then(|volume| {
            let level = level(vos, site, id, volume.status)?;
            vos.tell("done\n");
            found.push(with_level(vos.extended_as_json(&volume, server, partition), level));
            if !vos.json {
                vos.show_extended_paragraph(&volume, server, partition, &mut totals, true, level);
            }
            Ok(Shown { with_sites: false })
        }),
        Form::Paragraph | Form::Fields => vos.volume(server, partition, id).and_then(|volume| {
            let level = level(vos, site, id, volume.status)?;
            vos.tell("done\n");
            found.push(with_level(vos.volume_as_json(&volume, server, partition), level));
            if vos.json {
                return Ok(Shown { with_sites: false });
            }
            if form == Form::Fields {
                vos.show_volume_fields(&volume, server, partition);
                if let Some(level) = level_of(level) {
                    say!(vos.printer, "level\t\t{level}\n");
                }
                vos.show_entry(entry);
            } else {
                vos.show_volume_paragraph(&volume, server, partition, &mut totals, true, level);
            }
            Ok(Shown { with_sites: form == Form::Fields })
        }),
    };
    let is_unknown_backup = kind == Kind::Backup && !entry.has(Kind::Backup);
    match shown {
        Ok(shown) => {
            if is_unknown_backup {
                complain!(vos.printer, "Volume {text} does not exist in VLDB\n");
            }
            Ok(shown)
        }
        Err(code) => {
            vos.tell("done\n");
            match code {
                Code::ENODEV if is_unknown_backup => {
                    complain!(vos.printer, "Volume {text} does not exist\n");
                }
                Code::ENODEV => complain!(
                    vos.printer,
                    "Volume does not exist on server {} as indicated by the VLDB\n",
                    vos.resolved(server)
                ),
                code => vos.print_diagnostics("examine", code),
            }
            if !vos.json {
                say!(vos.printer, "\n");
            }
            Err(Stop::RETURNED)
        }
    }
}

/// The level of a volume that is listed with this status. A server that knows no levels serves all at any.
fn level(vos: &Vos, site: Site, id: u32, status: i32) -> Result<SecurityLevel, Code> {
    if status != VOK {
        return Ok(SecurityLevel::CLEAR);
    }
    Ok(vos.wait(vos.volumes.level(site.server, site.partition, VolumeId(id)))?.unwrap_or_default())
}

fn with_level(mut volume: Value, level: SecurityLevel) -> Value {
    if let (Some(object), Some(level)) = (volume.as_object_mut(), level_of(level)) {
        object.insert("level".to_owned(), level.into());
    }
    volume
}
