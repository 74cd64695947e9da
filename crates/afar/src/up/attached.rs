//! The mounted client of a cell of `afar up`: from its start to its end, and anew when somebody has cut its connection to the kernel.

use super::{Person, Prepared, StopSignals};
use crate::control_socket::{self, Offer};
use crate::metrics::{self, Publish};
use crate::mount::cache_limit;
use crate::mount::end::{self, End};
use crate::{callback_wait, client_uuid, kept_tokens, mount_point, private};
use afs_client::config::{CALLBACK_PORT, Cache, LocalUser};
use afs_client::{Client, Config as ClientConfig};
use afs_config::ClientFolder;
use afs_fuse::{Mount, Options, Owner};
use afs_server::Config as ServerConfig;
use afs_wire::ids::ViceId;
use rustix::process::geteuid;
use rx::{Runtime, TokioRuntime};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The time between two tries to mount again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What a client needs to be mounted: each time the same.
pub(super) struct Plan {
    /// The configuration of the servers.
    pub(super) config: ServerConfig,
    /// The state folder.
    pub(super) state: PathBuf,
    pub(super) prepared: Prepared,
    /// Where to mount.
    pub(super) path: PathBuf,
}

/// A mounted client.
pub(super) struct Attached {
    plan: Plan,
    /// `None` between two mounts.
    now: Option<(Mount, Client, Offer)>,
    /// Publishes the metrics of the client that there is.
    publish: Arc<Mutex<Option<Publish>>>,
}

impl Attached {
    /// Starts a client and mounts it.
    ///
    /// # Errors
    ///
    /// What is wrong, and what to do.
    pub(super) async fn new(plan: Plan) -> Result<Self, String> {
        let mut attached = Self { plan, now: None, publish: Arc::default() };
        attached.attach().await?;
        Ok(attached)
    }

    /// Where it is mounted.
    pub(super) fn path(&self) -> &Path {
        self.now.as_ref().map_or(&self.plan.path, |(mount, ..)| mount.path())
    }

    /// Publishes its metrics.
    pub(super) fn publisher(&self) -> Publish {
        let publish = Arc::clone(&self.publish);
        Arc::new(move || {
            let now = publish.lock().unwrap_or_else(PoisonError::into_inner).clone();
            now.iter().for_each(|publish| publish());
        })
    }

    async fn attach(&mut self) -> Result<(), String> {
        let Plan { config, state, prepared, path } = &self.plan;
        let folder = ClientFolder::read(&state.join("etc")).map_err(|error| error.to_string())?;
        let cache = state.join("cache");
        private::folder(&cache).map_err(|error| format!("the cache {}: {error}", cache.display()))?;
        let mut client = ClientConfig::of_folder(folder);
        let uuid = TokioRuntime::current().seed().and_then(|seed| client_uuid::of_folder(&cache, seed));
        client.uuid = Some(uuid.map_err(|error| format!("the cache {}: {error}", cache.display()))?);
        client.set_memory(u64::from(config.server.memory_mib) << 20);
        callback_wait::of_client(&mut client)?;
        client.bind = SocketAddr::from((config.server.bind, CALLBACK_PORT));
        client.keys = vec![(prepared.cell.clone(), prepared.keys.clone())];
        let local = |(person, _): &(Person, ViceId)| LocalUser {
            uid: person.uid,
            cell: prepared.cell.clone(),
            name: person.name.clone(),
        };
        client.users = prepared.people.iter().map(local).collect();
        client.cache = Some(Cache { folder: cache.clone(), limit_bytes: cache_limit(&cache) });
        let client =
            Client::start(client).await.map_err(|error| format!("the client cannot start: {error}"))?;
        kept_tokens::keep(&client, path);
        let mut options = Options::new(path);
        let offer = control_socket::offer(&client, path, Some(&cache), state.join("etc/CellServDB"));
        options.source.clone_from(&offer.source);
        options.allow_other = geteuid().is_root();
        options.cache_is_stacked = mount_point::is_stacked(&cache);
        let differs = |(person, id): &&(Person, ViceId)| i64::from(person.uid) != i64::from(id.0);
        let owner =
            |(person, id): &(Person, ViceId)| Owner { cell: prepared.cell.clone(), id: *id, uid: person.uid };
        options.owners = prepared.people.iter().filter(differs).map(owner).collect();
        match Mount::start(&client, &options) {
            Ok(mount) => {
                self.publish_as(Some(metrics::of_client(&client, &mount)));
                self.now = Some((mount, client, offer));
                Ok(())
            }
            Err(error) => {
                client.shut_down().await;
                Err(format!("{error}\n(--no-mount runs only the servers)"))
            }
        }
    }

    fn publish_as(&self, publish: Option<Publish>) {
        *self.publish.lock().unwrap_or_else(PoisonError::into_inner) = publish;
    }

    /// Unmounts, and stores what is not stored.
    pub(super) async fn detach(&mut self) {
        let Some((mount, client, offer)) = self.now.take() else { return };
        self.publish_as(None);
        drop(offer);
        let path = mount.path().to_owned();
        // It waits for the kernel, which may wait for the client.
        let unmounted = tokio::task::spawn_blocking(move || mount.unmount()).await;
        match unmounted {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => eprintln!(
                "afar up: {} is still in use: programs that have files open in it will get errors",
                path.display()
            ),
            Ok(Err(error)) => eprintln!("afar up: cannot unmount {}: {error}", path.display()),
            Err(error) => eprintln!("afar up: cannot unmount {}: {error}", path.display()),
        }
        client.shut_down().await;
    }

    /// Mounts a client in the place of one whose connection was cut: as soon as that can be.
    async fn attach_again(&mut self) {
        eprintln!("afar up: {}; mounting again", end::cut(&self.plan.path));
        self.detach().await;
        let mut last = None;
        loop {
            let again = match mount_point::prepare(&self.plan.path) {
                Ok(_) => self.attach().await,
                Err(error) => Err(error),
            };
            match again {
                Ok(()) => break,
                Err(error) if last.as_ref() == Some(&error) => {}
                Err(error) => {
                    eprintln!("afar up: {error}; trying again until it can be mounted");
                    last = Some(error);
                }
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
        eprintln!("afar up: {} is mounted again", self.plan.path.display());
    }
}

/// Waits until the process is told to stop, or somebody has unmounted the cell.
pub(super) async fn hold(attached: Option<&mut Attached>, told: &mut StopSignals) {
    let unmounted = async {
        let Some(attached) = attached else { return std::future::pending().await };
        while let Some((mount, ..)) = &attached.now {
            if end::of(mount).await != End::Cut {
                eprintln!("afar up: somebody has unmounted the cell; stopping");
                return;
            }
            attached.attach_again().await;
        }
    };
    tokio::select! {
        () = told.stop_is_told() => {}
        () = unmounted => {}
    }
}
