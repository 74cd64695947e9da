//! The roles of this process as the overseer's instances: what runs, what is to run, and what `bos stop` and `bos start` do to it.
//!
//! A stopped role keeps its port and answers its clients as a server that is not there, so that they go to another one. What it has
//! in memory stays: volumes, databases and callback promises are those of one process. What `bos stop` says is kept in a file of the
//! state folder, as OpenAFS's overseer keeps it in BosConfig; what `bos shutdown` says holds until the process ends.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use afs_volserver::{Partitions, VolumeService};
use afs_wire::bos::BnodeStatus;
use afs_wire::ids::AfsTime;
use rx::blocking::on_a_thread;
use rx::{Endpoint, Runtime, WeakEndpoint};

use crate::authority::replace;
use crate::config::Role;
use crate::vice;

/// The time within which calls should see that their role is stopped. Those of the volume service that work on a disk see it last.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// The time between two looks at that.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Something that runs, as `bos status` shows it.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) name: &'static str,
    kind: &'static str,
    pub(crate) commands: Vec<String>,
    roles: Vec<Role>,
    state: Mutex<State>,
    /// Held while it is being stopped or started.
    turn: tokio::sync::Mutex<()>,
}

/// The facts that `bos status` is told of something that runs.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) kind: &'static str,
    pub(crate) status: BnodeStatus,
    pub(crate) description: &'static str,
    /// True if it is to run.
    pub(crate) goal: bool,
    /// True if it is to run after a restart.
    pub(crate) file_goal: bool,
    pub(crate) started: AfsTime,
    pub(crate) starts: i32,
    /// The time when it was last stopped, if it was.
    pub(crate) last_exit: AfsTime,
}

/// The state of an instance, and its goal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct State {
    /// True if it is to run.
    pub(crate) goal: bool,
    /// True if it is to run after a restart.
    pub(crate) file_goal: bool,
    /// True if it does.
    runs: bool,
    started: AfsTime,
    starts: i32,
    /// The time when it was last stopped, if it was.
    last_exit: AfsTime,
    /// True if it is being stopped; its clients are told that it is not there.
    is_ending: bool,
    /// True if it has to stay stopped, as its partitions are being checked.
    is_held: bool,
}

impl State {
    /// The status that clients see.
    fn status(self) -> BnodeStatus {
        match (self.goal, self.runs) {
            (true, true) if !self.is_ending => BnodeStatus::NORMAL,
            (true, _) => BnodeStatus::STARTING_UP,
            (false, true) => BnodeStatus::SHUTTING_DOWN,
            (false, false) => BnodeStatus::SHUTDOWN,
        }
    }
}

impl Instance {
    /// Its state now.
    pub(crate) fn state(&self) -> State {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The facts that are told of it now.
    pub(crate) fn shown(&self) -> Shown {
        let state = self.state();
        let (kind, status) = (self.kind, state.status());
        let description = match status {
            _ if kind != "dafs" => "",
            BnodeStatus::NORMAL => "file server running",
            BnodeStatus::SHUTTING_DOWN => "file server shutting down",
            BnodeStatus::SHUTDOWN => "file server shut down",
            _ => "starting file server",
        };
        let State { goal, file_goal, started, starts, last_exit, .. } = state;
        Shown { kind, status, description, goal, file_goal, started, starts, last_exit }
    }
}

/// The reason why an instance was not told to run or to stop.
#[derive(Debug)]
pub(crate) enum NotSet {
    /// Its partitions are being checked, for which it has to be stopped.
    Held,
    /// It could not be written down.
    File(io::Error),
}

/// The instances of a process.
#[derive(Debug)]
pub(crate) struct Instances {
    pub(crate) all: Vec<Instance>,
    /// Names those that are stopped, one a line.
    file: PathBuf,
    /// Held while the file is written, until what it says is so.
    writing: Arc<tokio::sync::Mutex<()>>,
    /// The services that can be stopped; set when the roles are served.
    served: OnceLock<Served>,
    clock: fn() -> AfsTime,
}

/// The parts that the instances are made of.
pub(crate) struct Served {
    pub(crate) endpoints: Vec<(Role, WeakEndpoint)>,
    /// The service of volumes, if it is a role of this process.
    pub(crate) volume_service: Option<VolumeService>,
    /// The partitions of this process, if it serves files.
    pub(crate) partitions: Option<Partitions>,
    pub(crate) runtime: Arc<dyn Runtime>,
}

impl std::fmt::Debug for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Served").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}

impl Instances {
    /// Makes the instances of a process with these roles. The file names the stopped ones.
    ///
    /// # Errors
    ///
    /// The file is there and cannot be read.
    pub(crate) fn new(
        roles: &[Role],
        program: &str,
        file: PathBuf,
        clock: fn() -> AfsTime,
    ) -> io::Result<Self> {
        let stopped: BTreeSet<String> = match fs::read_to_string(&file) {
            Ok(text) => text.lines().map(|line| line.trim().to_owned()).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeSet::new(),
            Err(error) => return Err(error),
        };
        let instance = |name, kind, of: &[Role]| {
            let roles: Vec<Role> = of.iter().copied().filter(|role| roles.contains(role)).collect();
            let goal = !stopped.contains(name);
            let started = if goal { clock() } else { AfsTime(0) };
            let state = State {
                goal,
                file_goal: goal,
                runs: goal,
                started,
                starts: i32::from(goal),
                last_exit: AfsTime(0),
                is_ending: false,
                is_held: false,
            };
            let command = |role: &Role| format!("{program} server --roles {}", role.name());
            let commands = roles.iter().map(command).collect();
            let (state, turn) = (Mutex::new(state), tokio::sync::Mutex::default());
            roles.first().is_some_and(|first| *first == of[0]).then_some(Instance {
                name,
                kind,
                commands,
                roles,
                state,
                turn,
            })
        };
        let all = [
            instance("ptserver", "simple", &[Role::Pt]),
            instance("vlserver", "simple", &[Role::Vl]),
            instance("dafs", "dafs", &[Role::File, Role::Vol]),
        ];
        let all = all.into_iter().flatten().collect();
        Ok(Self { all, file, writing: Arc::default(), served: OnceLock::new(), clock })
    }

    /// True if a role is stopped from the start.
    pub(crate) fn is_stopped(&self, role: Role) -> bool {
        self.all.iter().any(|instance| instance.roles.contains(&role) && !instance.state().goal)
    }

    /// Lets clients stop and start these from now on.
    pub(crate) fn serve(&self, served: Served) {
        assert!(self.served.set(served).is_ok(), "roles are served once");
    }

    /// The instance of this name.
    pub(crate) fn get(&self, name: &[u8]) -> Option<&Instance> {
        self.all.iter().find(|instance| instance.name.as_bytes() == name)
    }

    /// Sets whether an instance is to run, with `for_good` also after a restart of the process. Stops an instance in the background, but returns
    /// only when a started one runs.
    ///
    /// # Errors
    ///
    /// The instance has to stay stopped while its partitions are checked, or the file cannot be written. Then nothing has changed.
    pub(crate) async fn set(
        self: &Arc<Self>,
        name: &'static str,
        goal: bool,
        for_good: bool,
    ) -> Result<(), NotSet> {
        let one_at_a_time = Arc::clone(&self.writing).lock_owned().await;
        let this = Arc::clone(self);
        // If the caller goes away meanwhile, it is done all the same, and in turn.
        on_a_thread(move || {
            let result = this.set_goals(name, goal, for_good);
            drop(one_at_a_time);
            result
        })
        .await?;
        if goal {
            self.settle(name).await;
        }
        Ok(())
    }

    fn set_goals(self: &Arc<Self>, name: &'static str, goal: bool, for_good: bool) -> Result<(), NotSet> {
        let instance = self.get(name.as_bytes()).expect("it was found before");
        if goal && instance.state().is_held {
            return Err(NotSet::Held);
        }
        if for_good {
            self.write_down(name, goal).map_err(NotSet::File)?;
        }
        {
            let mut state = instance.lock();
            state.goal = goal;
            state.file_goal = if for_good { goal } else { state.file_goal };
        }
        let Some(served) = self.served() else { return Ok(()) };
        // A caller that has stopped the instance sees it stopped at once.
        if !goal {
            self.set_away(instance, true);
        }
        let this = Arc::clone(self);
        served.runtime.spawn(Box::pin(async move { this.settle(name).await }));
        Ok(())
    }

    /// Writes the file with this instance so, and the others as they are.
    fn write_down(&self, name: &str, goal: bool) -> io::Result<()> {
        let is_stopped = |instance: &&Instance| {
            if instance.name == name { !goal } else { !instance.state().file_goal }
        };
        let text: String = self.all.iter().filter(is_stopped).map(|i| format!("{}\n", i.name)).collect();
        // Also if it is empty: a file that was removed may be there again after a loss of power.
        replace(&self.file, text.as_bytes())
    }

    /// Has the file server stay stopped while its partitions are checked. Says whether it is stopped.
    pub(crate) async fn hold(&self) -> bool {
        // Whoever has seen that it is not held has started it when this goes on.
        let _one_at_a_time = self.writing.lock().await;
        self.get(b"dafs").is_some_and(|instance| {
            let mut state = instance.lock();
            state.is_held = state.status() == BnodeStatus::SHUTDOWN;
            state.is_held
        })
    }

    /// Lets it be started again.
    pub(crate) fn release(&self) {
        if let Some(instance) = self.get(b"dafs") {
            instance.lock().is_held = false;
        }
    }

    /// Waits until everything is as it is to be.
    pub(crate) async fn wait(&self) {
        let Some(Served { runtime, .. }) = self.served() else { return };
        while self.all.iter().map(Instance::state).any(|state| state.goal != state.runs || state.is_ending) {
            runtime.sleep_until(runtime.now() + LOOK_EVERY).await;
        }
    }

    /// The time.
    pub(crate) fn now(&self) -> AfsTime {
        (self.clock)()
    }

    /// The services that there are to stop, once the roles are served.
    pub(crate) fn served(&self) -> Option<&Served> {
        self.served.get()
    }

    fn endpoints(&self, instance: &Instance) -> Vec<Endpoint> {
        let all = self.served().into_iter().flat_map(|served| &served.endpoints);
        let of_instance = all.filter(|(role, _)| instance.roles.contains(role));
        of_instance.filter_map(|(_, endpoint)| endpoint.upgrade()).collect()
    }

    /// Has an instance answer its clients as one that is not there, or as one that is.
    fn set_away(&self, instance: &Instance, is_away: bool) {
        self.endpoints(instance).iter().for_each(|endpoint| endpoint.set_away(is_away));
    }

    /// Stops or starts an instance, if it is not as it is to be.
    async fn settle(&self, name: &str) {
        let Some(instance) = self.get(name.as_bytes()) else { return };
        let _turn = instance.turn.lock().await;
        let State { goal, runs, .. } = instance.state();
        if goal && !runs {
            self.set_away(instance, false);
            let mut state = instance.lock();
            (state.runs, state.started, state.starts) = (true, (self.clock)(), state.starts + 1);
            tracing::info!(instance = name, "the instance was started");
        } else if !goal && runs {
            let mut ending = Ending::begin(instance, self.clock);
            ending.is_stopped = self.stop(instance).await;
        } else if goal {
            // It was stopped and started before anything was done of it.
            self.set_away(instance, false);
        }
    }

    /// Ends all that clients have begun, and brings it to disk. Says whether it is stopped: if it is to run again before that is done, the
    /// rest is left, and it is there again.
    async fn stop(&self, instance: &Instance) -> bool {
        let Some(Served { volume_service, partitions, runtime, .. }) = self.served() else { return true };
        self.set_away(instance, true);
        let endpoints = self.endpoints(instance);
        let until = runtime.now() + STOP_TIMEOUT;
        let calls = || endpoints.iter().map(Endpoint::served_calls).sum::<usize>();
        while calls() > 0 && runtime.now() < until {
            if instance.state().goal {
                self.set_away(instance, false);
                return false;
            }
            runtime.sleep_until(runtime.now() + LOOK_EVERY).await;
        }
        if calls() > 0 {
            tracing::warn!(instance = instance.name, calls = calls(), "calls go on though it is stopped");
        }
        if !instance.roles.contains(&Role::File) {
            return true;
        }
        if let Some(volume_service) = volume_service {
            volume_service.end_all().await;
        }
        if let Some(partitions) = partitions.clone() {
            on_a_thread(move || vice::sync(&partitions)).await;
        }
        true
    }
}

/// A stop that is going on. If it panics the instance counts as stopped, as its clients are told already, so that nobody waits for its end for
/// ever and it can be started again.
struct Ending<'a> {
    instance: &'a Instance,
    clock: fn() -> AfsTime,
    is_stopped: bool,
}

impl<'a> Ending<'a> {
    fn begin(instance: &'a Instance, clock: fn() -> AfsTime) -> Self {
        instance.lock().is_ending = true;
        Self { instance, clock, is_stopped: false }
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut state = self.instance.lock();
        state.is_ending = false;
        let (instance, has_panicked) = (self.instance.name, std::thread::panicking());
        if self.is_stopped || has_panicked {
            (state.runs, state.last_exit) = (false, (self.clock)());
        }
        if has_panicked {
            tracing::error!(instance, "its stop has panicked, so perhaps not all of it has ended");
        } else if self.is_stopped {
            tracing::info!(instance, "the instance was stopped");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::time::SystemTime;

    use rx::{BoxFuture, EndpointConfig, Port, ServiceConfig, SocketOptions, TokioRuntime};
    use rx_proto::config::CallLimits;
    use rx_proto::endpoint::Service;
    use rx_proto::ids::ServiceId;
    use rx_proto::security::Null;
    use rx_proto::time::Instant;
    use tokio::sync::mpsc;

    use super::*;

    fn instances(name: &str, roles: &[Role]) -> Instances {
        let file = std::env::temp_dir().join(format!("afs-server-{name}-{}", std::process::id()));
        Instances::new(roles, "/usr/bin/afar", file, || AfsTime(1_000_000_000)).unwrap()
    }

    #[test]
    fn roles_look_like_the_servers_of_openafs() {
        let all = instances("roles", &Role::ALL).all;
        let names: Vec<_> = all.iter().map(|i| (i.name, i.kind, i.commands.len())).collect();
        assert_eq!(names, [("ptserver", "simple", 1), ("vlserver", "simple", 1), ("dafs", "dafs", 2)]);
        assert_eq!(all[2].commands[0], "/usr/bin/afar server --roles file");
        assert!(instances("none", &[Role::Bos]).all.is_empty());
        assert!(instances("vol", &[Role::Vol]).all.is_empty());
    }

    #[tokio::test]
    async fn what_is_stopped_for_good_is_stopped_after_a_restart_and_the_rest_is_not() {
        let roles = [Role::Pt, Role::Vl, Role::File];
        let first = Arc::new(instances("goals", &roles));
        first.set("vlserver", false, true).await.unwrap();
        first.set("ptserver", false, false).await.unwrap();
        assert_eq!(first.get(b"ptserver").unwrap().state().status(), BnodeStatus::SHUTTING_DOWN);
        let again = instances("goals", &roles);
        let stopped = roles.map(|role| again.is_stopped(role));
        assert_eq!(stopped, [false, true, false]);
        assert_eq!(again.get(b"vlserver").unwrap().state().status(), BnodeStatus::SHUTDOWN);
        first.set("vlserver", true, true).await.unwrap();
        assert!(!instances("goals", &roles).is_stopped(Role::Vl));
        assert_eq!(fs::read_to_string(&first.file).unwrap(), "", "one that was removed may come back");
        fs::remove_file(&first.file).unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn roles_that_are_stopped_for_good_at_once_are_all_stopped_after_a_restart() {
        let roles = [Role::Pt, Role::Vl, Role::File];
        let first = Arc::new(instances("at-once", &roles));
        for goal in [false, true].into_iter().cycle().take(20) {
            let tasks = ["ptserver", "vlserver", "dafs"].map(|name| {
                let first = Arc::clone(&first);
                tokio::spawn(async move { first.set(name, goal, true).await })
            });
            for task in tasks {
                task.await.unwrap().unwrap();
            }
            let again = instances("at-once", &roles);
            assert_eq!(roles.map(|role| again.is_stopped(role)), [!goal; 3]);
        }
        fs::remove_file(&first.file).unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_started_while_a_call_holds_up_its_stop_is_there_at_once() {
        let bind = || Endpoint::bind((Ipv4Addr::LOCALHOST, 0).into(), EndpointConfig::default()).unwrap();
        let (server, client) = (bind(), bind());
        let service = Service {
            id: ServiceId(1),
            security: vec![Arc::new(Null)],
            check_reach: false,
            upgrades_to: None,
            limits: CallLimits::default(),
        };
        let (begun, mut has_begun) = mpsc::unbounded_channel();
        server.add_service(ServiceConfig::new(service, move |_| {
            let begun = begun.clone();
            // It works on a disk that does not answer, and so does not notice the end of its call.
            async move {
                let _ = begun.send(());
                std::future::pending().await
            }
        }));
        let all = Arc::new(instances("held-up", &[Role::Pt]));
        all.serve(Served {
            endpoints: vec![(Role::Pt, server.downgrade())],
            volume_service: None,
            partitions: None,
            runtime: Arc::new(TokioRuntime::current()),
        });
        let connection = client.connect(server.local_addr(), ServiceId(1), Box::new(Null));
        let mut call = connection.call().await.unwrap();
        call.finish().unwrap();
        has_begun.recv().await.unwrap();

        all.set("ptserver", false, false).await.unwrap();
        while !all.get(b"ptserver").unwrap().state().is_ending {
            tokio::task::yield_now().await;
        }
        assert_eq!(all.get(b"ptserver").unwrap().state().status(), BnodeStatus::SHUTTING_DOWN);
        all.set("ptserver", true, false).await.unwrap();
        assert_eq!(all.get(b"ptserver").unwrap().state().status(), BnodeStatus::NORMAL);
        let mut call = connection.call().await.unwrap();
        call.finish().unwrap();
        tokio::time::timeout(Duration::from_secs(60), has_begun.recv()).await.unwrap().unwrap();
    }

    /// A stop goes by its clock, which fails.
    #[derive(Debug)]
    struct NoClock(TokioRuntime);

    impl Runtime for NoClock {
        fn now(&self) -> Instant {
            panic!("a stop that panics, for a test");
        }

        fn wall_clock(&self) -> SystemTime {
            self.0.wall_clock()
        }

        fn sleep_until(&self, at: Instant) -> BoxFuture {
            self.0.sleep_until(at)
        }

        fn spawn(&self, task: BoxFuture) {
            self.0.spawn(task);
        }

        fn seed(&self) -> io::Result<[u8; 32]> {
            self.0.seed()
        }

        fn bind(&self, address: SocketAddr, options: &SocketOptions) -> io::Result<Arc<dyn Port>> {
            self.0.bind(address, options)
        }
    }

    /// `bos status` said for ever that it was starting up.
    #[tokio::test]
    async fn a_role_whose_stop_panics_is_stopped_and_can_be_started() {
        let all = Arc::new(instances("panics", &[Role::Pt]));
        let runtime = Arc::new(NoClock(TokioRuntime::current()));
        all.serve(Served { endpoints: Vec::new(), volume_service: None, partitions: None, runtime });
        let status = || all.get(b"ptserver").unwrap().state().status();
        for _ in 0..2 {
            all.set("ptserver", false, false).await.unwrap();
            let is_stopped = async {
                while status() != BnodeStatus::SHUTDOWN {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), is_stopped).await.expect("it is stopped in time");
            all.wait().await;
            all.set("ptserver", true, false).await.unwrap();
            assert_eq!(status(), BnodeStatus::NORMAL);
            all.wait().await;
        }
    }

    #[tokio::test]
    async fn a_file_server_whose_partitions_are_checked_is_not_started() {
        let all = Arc::new(instances("checked", &[Role::File]));
        assert!(!all.hold().await, "it runs");
        all.set("dafs", false, true).await.unwrap();
        let all = Arc::new(instances("checked", &[Role::File]));
        assert!(all.hold().await);
        assert!(matches!(all.set("dafs", true, true).await, Err(NotSet::Held)));
        assert!(instances("checked", &[Role::File]).is_stopped(Role::File), "nothing has changed");
        all.release();
        all.set("dafs", true, true).await.unwrap();
        assert!(!all.is_stopped(Role::File));
        fs::remove_file(&all.file).unwrap();
    }
}
