//! Locations against a database of one volume.

use super::*;

#[test]
fn the_kind_is_cut_off_a_name_once() {
    assert_eq!(split_name("root.cell"), ("root.cell", None));
    assert_eq!(split_name("root.cell.readonly"), ("root.cell", Some(VolumeType::READ_ONLY)));
    assert_eq!(split_name("user.backup"), ("user", Some(VolumeType::BACKUP)));
    assert_eq!(split_name(".readonly"), (".readonly", None));
    assert_eq!(split_name("a.backup.readonly"), ("a.backup", Some(VolumeType::READ_ONLY)));
}

#[test]
fn a_name_of_digits_is_an_id() {
    assert_eq!(id_of_digits("536870912"), Some(VolumeId(536_870_912)));
    assert_eq!(id_of_digits("99999999999"), None);
    assert_eq!(id_of_digits("12a"), None);
    assert_eq!(id_of_digits(""), None);
}

fn entry(flags: EntryFlags, sites: &[(u32, SiteFlags)]) -> VolumeEntry {
    let servers = crate::table::Servers::default();
    let sites = sites.iter().map(|&(number, flags)| {
        let socket = SocketAddr::from(([192, 0, 2, number as u8], 7000));
        let server = servers.get_or_add(ServerKind::File, CellIndex(1), None, &[socket]).unwrap();
        Site { server, flags }
    });
    VolumeEntry {
        cell: CellIndex(1),
        name: "v".to_owned(),
        ids: [VolumeId(10), VolumeId(11), VolumeId(12)],
        flags,
        sites: sites.collect(),
        until: Instant::MAX,
    }
}

#[test]
fn only_sites_that_have_the_kind_and_something_released_are_asked() {
    let sites = [
        (1, SiteFlags::RW_VOL),
        (2, SiteFlags::RO_VOL),
        (3, SiteFlags::RO_VOL | SiteFlags::DONT_USE),
        (4, SiteFlags::RO_VOL | SiteFlags::NEW_REP_SITE),
    ];
    let entry = entry(EntryFlags::RW_EXISTS | EntryFlags::RO_EXISTS, &sites);
    let of = |kind| {
        entry.servers_of(kind).iter().map(|s| s.best().unwrap().socket.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(of(VolumeType::READ_WRITE), ["192.0.2.1:7000"]);
    assert_eq!(
        of(VolumeType::READ_ONLY),
        ["192.0.2.4:7000"],
        "the other released one has the release before"
    );
    assert_eq!(of(VolumeType::BACKUP), ["192.0.2.1:7000"]);
    assert_eq!(entry.id_of(VolumeType::BACKUP), None, "there is none");
    assert_eq!(entry.kind_of(VolumeId(11)), Some(VolumeType::READ_ONLY));
    assert_eq!(entry.kind_of(VolumeId(12)), None);
}

#[tokio::test]
async fn a_wrong_entry_is_forgotten_under_all_its_ids() {
    let locations = locations();
    let entry = Arc::new(entry(EntryFlags::RW_EXISTS | EntryFlags::RO_EXISTS, &[]));
    locations.keep(&entry);
    let now = Instant::ORIGIN;
    assert!(locations.known(CellIndex(1), VolumeId(11)).is_some());
    assert!(locations.known_name(now, CellIndex(1), "v").is_some());
    locations.forget(CellIndex(1), VolumeId(10));
    assert!(locations.known(CellIndex(1), VolumeId(11)).is_none());
    assert!(locations.known_name(now, CellIndex(1), "v").is_none());
    locations.note_missing(now, CellIndex(1), "w");
    assert!(locations.is_missing(now, CellIndex(1), "w"));
    assert!(!locations.is_missing(now + MISSING_LIFE, CellIndex(1), "w"));
}
#[tokio::test]
async fn a_snapshot_is_where_the_server_is_that_told_of_it_and_no_server_tells_where_other_volumes_are() {
    let (locations, database) = (locations(), Database::default());
    locations.keep(&Arc::new(entry(EntryFlags::RW_EXISTS, &[(1, SiteFlags::RW_VOL)])));
    let socket = SocketAddr::from(([192, 0, 2, 9], 7000));
    let server = locations.servers.get_or_add(ServerKind::File, CellIndex(1), None, &[socket]).unwrap();
    for volume in [VolumeId(10), VolumeId(40)] {
        locations.note_snapshot(&database, CellIndex(1), volume, &server);
    }
    let servers = |volume| {
        let entry = locations.known(CellIndex(1), volume).unwrap();
        let servers = entry.servers_of(entry.kind_of(volume).unwrap());
        servers.iter().map(|server| server.best().unwrap().socket).collect::<Vec<_>>()
    };
    assert_eq!(servers(VolumeId(40)), [socket]);
    assert_ne!(servers(VolumeId(10)), [socket], "the VLDB knows where that is");
    assert_eq!(*database.read_only.lock().unwrap(), [VolumeId(40)]);
    locations.forget(CellIndex(1), VolumeId(40));
    assert!(locations.known(CellIndex(1), VolumeId(40)).is_none());
}

fn locations() -> Locations {
    Locations::new(Arc::new(rx::TokioRuntime::current()), Arc::default(), 7000)
}

/// Database servers with one volume `v`, on a server with a UUID; it counts what it is asked.
#[derive(Debug, Default)]
struct Database {
    asked: Mutex<Vec<&'static str>>,
    read_only: Mutex<Vec<VolumeId>>,
    knows_no_uuids: bool,
    is_away: bool,
}

impl Database {
    fn answer<T: Send + 'static>(&self, what: &'static str, answer: Result<T, Failure>) -> Asking<'_, T> {
        self.asked.lock().unwrap().push(what);
        Box::pin(std::future::ready(answer))
    }

    fn asked(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl Vldb for Database {
    fn entry<'a>(&'a self, _: &'a Cell, name: VlName) -> Asking<'a, UvldbEntry> {
        let mut entry: UvldbEntry = rxgen::xdr::from_bytes(&[0; 1048]).unwrap();
        entry.name = rxgen::xdr::CharVec::from_text("v").unwrap();
        entry.n_servers = 1;
        entry.server_flags[0] = SiteFlags::RW_VOL | SiteFlags::RO_VOL | SiteFlags::UUID;
        entry.volume_id = [VolumeId(10), VolumeId(11), VolumeId(0)];
        entry.flags = EntryFlags::RW_EXISTS | EntryFlags::RO_EXISTS;
        let answer = match &name[..] {
            _ if self.is_away => {
                let (what, servers) = ("looking".to_owned(), Vec::new());
                Err(Failure::of_lookup(Error::Unreachable { what, servers }, false))
            }
            _ if self.knows_no_uuids => Err(Failure::of_code(Abort::OPCODE)),
            b"v" | b"10" | b"11" => Ok(entry),
            _ => Err(Failure::of_code(abort::VL_NOENT)),
        };
        self.answer("entry", answer)
    }

    fn entry_without_uuids<'a>(&'a self, _: &'a Cell, _: VlName) -> Asking<'a, NvldbEntry> {
        self.answer("entry without UUIDs", Err(Failure::of_code(abort::VL_NOENT)))
    }

    fn addresses<'a>(&'a self, _: &'a Cell, _: Uuid) -> Asking<'a, Vec<HostAddr>> {
        self.answer("addresses", Ok(vec![HostAddr::from(std::net::Ipv4Addr::new(192, 0, 2, 1))]))
    }

    fn note_host(&self, _: &[IpAddr]) {}

    fn note_read_only(&self, _: CellIndex, volume: VolumeId) {
        self.read_only.lock().unwrap().push(volume);
    }
}

fn cell() -> Arc<Cell> {
    let servers = Servers::default();
    let cells = crate::cells::Cells::new(&afs_config::CellServDb::default(), 7003, &servers);
    cells.set(&afs_config::CellName::new("one.test").unwrap(), None, &[], &servers).unwrap();
    cells.get(CellIndex(1)).unwrap()
}

#[tokio::test]
async fn a_volume_is_asked_for_once_and_then_known_by_name_and_by_all_ids() {
    let (locations, cell, database) = (locations(), cell(), Database::default());
    let entry = locations.by_name(&database, &cell, "v", None).await.unwrap();
    assert_eq!(entry.id_of(VolumeType::READ_ONLY), Some(VolumeId(11)));
    assert_eq!(database.asked(), ["entry", "addresses"]);
    assert_eq!(*database.read_only.lock().unwrap(), [VolumeId(11)]);
    let sites = locations.sites_of(&database, &cell, VolumeId(11)).await.unwrap();
    assert_eq!(sites[0].best().unwrap().socket.to_string(), "192.0.2.1:7000");
    locations.by_name(&database, &cell, "10", None).await.unwrap();
    assert_eq!(database.asked(), [""; 0]);
    locations.forget(CellIndex(1), VolumeId(10));
    locations.by_id(&database, &cell, VolumeId(11)).await.unwrap();
    assert_eq!(database.asked(), ["entry"], "the server's addresses are known");
}

#[tokio::test]
async fn a_kind_that_a_volume_does_not_have_is_asked_for_again_but_not_each_time() {
    let (locations, cell, database) = (locations(), cell(), Database::default());
    for _ in 0..3 {
        let entry = locations.by_name(&database, &cell, "v", Some(VolumeType::BACKUP)).await.unwrap();
        assert_eq!(entry.id_of(VolumeType::BACKUP), None);
    }
    assert_eq!(database.asked(), ["entry", "addresses"]);
}

#[tokio::test]
async fn a_volume_that_is_missing_is_not_asked_for_at_each_look() {
    let (locations, cell) = (locations(), cell());
    let database = Database { knows_no_uuids: true, ..Database::default() };
    for _ in 0..3 {
        let none = locations.by_name(&database, &cell, "w", None).await;
        assert!(matches!(none, Err(Error::NoVolume { .. })));
    }
    assert_eq!(database.asked(), ["entry", "entry without UUIDs"]);
}

#[tokio::test]
async fn mount_points_lead_on_for_as_long_as_the_database_servers_are_away() {
    let (locations, cell) = (locations(), cell());
    let database = Database { is_away: true, ..Database::default() };
    let flags = EntryFlags::RW_EXISTS | EntryFlags::RO_EXISTS;
    locations.keep(&Arc::new(VolumeEntry { until: Instant::ORIGIN, ..entry(flags, &[]) }));
    for wanted in [None, Some(VolumeType::READ_ONLY)] {
        let found = locations.by_name(&database, &cell, "v", wanted).await.unwrap();
        assert_eq!(found.id_of(VolumeType::READ_ONLY), Some(VolumeId(11)));
    }
    assert_eq!(database.asked(), ["entry", "entry"], "whether they are back is asked each time");
    let none = locations.by_name(&database, &cell, "v", Some(VolumeType::BACKUP)).await;
    assert!(matches!(none, Err(Error::Unreachable { .. })));
}
