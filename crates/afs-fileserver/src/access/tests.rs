//! Tests of who may do what with a file.

use super::*;

const OWNER: ViceId = ViceId(7);
const OTHER: ViceId = ViceId(8);
const ADMIN: ViceId = ViceId(1);
const GROUP: ViceId = ViceId(-300);

const R: Rights = Rights::READ;
const W: Rights = Rights::WRITE;
const I: Rights = Rights::INSERT;
const L: Rights = Rights::LOOKUP;
const D: Rights = Rights::DELETE;
const K: Rights = Rights::LOCK;
const A: Rights = Rights::ADMINISTER;
const NONE: Rights = Rights::NONE;

/// Somebody, with their groups: administrators if the id is that of one.
fn with_caller<T>(id: ViceId, test: impl FnOnce(&Caller<'_>) -> T) -> T {
    let mut groups = vec![id, ViceId::SYSTEM_ANYUSER];
    if id == ADMIN {
        groups.push(ViceId::SYSTEM_ADMINISTRATORS);
    }
    if id == OTHER {
        groups.push(GROUP);
    }
    groups.sort_unstable();
    test(&Caller {
        id,
        groups: &groups,
        host_groups: &[],
        anyone: &[ViceId::SYSTEM_ANYUSER],
        implicit: IMPLICIT_ADMIN,
    })
}

fn subject(file_type: FileType, mode: u32, rights: Rights) -> Subject {
    Subject { file_type, owner: OWNER, group: ViceId(0), mode, rights }
}

fn status(mask: StoreMask, mode: u32) -> AfsStoreStatus {
    AfsStoreStatus { mask, owner: OTHER, group: ViceId(5), unix_mode_bits: mode, ..AfsStoreStatus::default() }
}

#[test]
fn rights_are_the_grants_to_any_group_less_what_is_taken_from_any() {
    let list = Acl {
        positive: vec![(OWNER, R | W), (GROUP, R | I | D), (ViceId::SYSTEM_ANYUSER, L), (ViceId(9), A)],
        negative: vec![(GROUP, D), (OTHER, I), (ViceId(9), L)],
    };
    let of = |id| with_caller(id, |caller| caller.granted(&list));
    assert_eq!(of(OWNER).caller, R | W | L);
    assert_eq!(of(OTHER).caller, R | L);
    assert_eq!(of(ADMIN).caller, L | A, "an administrator has lookup and administer, and no more");
    assert_eq!(of(ViceId::ANONYMOUS).caller, L);
    assert_eq!(of(OWNER).anyone, L);
}

#[test]
fn what_administrators_have_everywhere_can_be_set() {
    let nobody = Acl { positive: vec![], negative: vec![] };
    let of = |id, implicit| with_caller(id, |caller| Caller { implicit, ..*caller }.granted(&nobody).caller);
    assert_eq!((of(ADMIN, R | L), of(ADMIN, NONE), of(OTHER, R | L)), (R | L, NONE, NONE));
}

#[test]
fn a_server_that_takes_no_changes_says_so_whatever_the_rights() {
    let may = |id, writers| with_caller(id, |caller| to_write(caller, writers).is_ok());
    let of = |writers| [OWNER, ADMIN].map(|id| may(id, writers));
    assert_eq!(of(Writers::Everybody), [true, true]);
    assert_eq!(of(Writers::Administrators), [false, true]);
    assert_eq!(of(Writers::Nobody), [false, false]);
}

#[test]
fn a_host_gives_its_rights_to_whoever_calls_from_it() {
    let list = Acl { positive: vec![(ViceId(-500), R | L)], negative: vec![(OWNER, R)] };
    let groups = [ViceId::SYSTEM_ANYUSER, OWNER];
    let caller = Caller {
        id: OWNER,
        groups: &groups,
        host_groups: &[ViceId(-500)],
        anyone: &[],
        implicit: IMPLICIT_ADMIN,
    };
    assert_eq!(caller.granted(&list), Granted { caller: R | L, anyone: R | L });
}

const FILE: FileType = FileType::FILE;
const DIRECTORY: FileType = FileType::DIRECTORY;
const SYMLINK: FileType = FileType::SYMLINK;

#[test]
fn who_may_see_and_read() {
    const MAY: Result<(), Failure> = Ok(());
    const NO: Result<(), Failure> = Err(Failure::ACCESS);
    type Row = (ViceId, FileType, u32, Rights, Result<(), Failure>, Result<(), Failure>);
    // Who, what, its mode, the rights: may he see its status, may he read it?
    let table: &[Row] = &[
        (OTHER, FILE, 0o644, R, MAY, MAY),
        (OTHER, FILE, 0o644, L | W | I | D | K | A, NO, NO),
        (OTHER, FILE, 0o044, R, MAY, NO),
        (OTHER, FILE, 0o100, R, MAY, MAY),
        (OWNER, FILE, 0o000, R, MAY, MAY),
        (OWNER, FILE, 0o644, I, MAY, MAY),
        (OWNER, FILE, 0o644, W | L, NO, NO),
        (ADMIN, FILE, 0o644, L | A, MAY, NO),
        (ADMIN, FILE, 0o000, R, MAY, MAY),
        (OTHER, DIRECTORY, 0o000, L, MAY, MAY),
        (OTHER, DIRECTORY, 0o777, R | W | I | D | K | A, NO, NO),
        (OWNER, DIRECTORY, 0o777, I, NO, NO),
        (ADMIN, DIRECTORY, 0o777, NONE, MAY, NO),
        (OTHER, SYMLINK, 0o777, L, MAY, MAY),
        (OTHER, SYMLINK, 0o777, R, NO, NO),
    ];
    for (row, (id, kind, mode, rights, see, read)) in table.iter().enumerate() {
        let subject = subject(*kind, *mode, *rights);
        let nobody = || ViceId::BAD;
        with_caller(*id, |caller| {
            assert_eq!(super::status(caller, &subject, nobody), *see, "row {row}");
            assert_eq!(fetch_data(caller, &subject, nobody), *read, "row {row}");
        });
    }
}

#[test]
fn whose_the_volume_is_sees_its_directories_and_mends_their_lists() {
    let directory = subject(DIRECTORY, 0o777, NONE);
    with_caller(OTHER, |caller| {
        for owner in [OTHER, GROUP] {
            assert_eq!(super::status(caller, &directory, || owner), Ok(()));
            assert_eq!(store_acl(caller, &directory, || owner), Ok(()));
        }
        assert_eq!(store_acl(caller, &directory, || OWNER), Err(Failure::ACCESS));
        assert_eq!(store_acl(caller, &subject(DIRECTORY, 0, A), || OWNER), Ok(()));
    });
    with_caller(ADMIN, |caller| assert_eq!(store_acl(caller, &directory, || OWNER), Ok(())));
}

#[test]
fn the_anonymous_are_no_owners_of_what_they_put_into_a_drop_box() {
    let mut file = subject(FILE, 0o644, I);
    file.owner = ViceId::ANONYMOUS;
    with_caller(ViceId::ANONYMOUS, |caller| {
        assert_eq!(fetch_data(caller, &file, || ViceId::BAD), Err(Failure::ACCESS));
        assert_eq!(store_data(caller, &file, &AfsStoreStatus::default()), Ok(()), "the first store");
    });
}

#[test]
fn who_may_write_and_set_status() {
    const MAY: Result<(), Failure> = Ok(());
    const NO: Result<(), Failure> = Err(Failure::ACCESS);
    const PERM: Result<(), Failure> = Err(Failure::NOT_OWNER);
    let plain = StoreMask::MOD_TIME;
    type Row = (ViceId, FileType, u32, Rights, StoreMask, u32, Result<(), Failure>, Result<(), Failure>);
    // Who, what, its mode, the rights, what is set: may he with data, may he alone?
    let table: &[Row] = &[
        (OTHER, FILE, 0o644, W, plain, 0, MAY, MAY),
        (OTHER, FILE, 0o644, R | I | L | D | K | A, plain, 0, NO, NO),
        (OTHER, FILE, 0o444, W, plain, 0, NO, MAY),
        (OWNER, FILE, 0o444, W, plain, 0, NO, MAY),
        (OWNER, FILE, 0o444, I, plain, 0, MAY, MAY),
        (OTHER, FILE, 0o644, W, StoreMask::OWNER, 0, PERM, PERM),
        (OTHER, FILE, 0o644, W, StoreMask::GROUP, 0, PERM, PERM),
        (OWNER, FILE, 0o644, I | W, StoreMask::OWNER, 0, PERM, PERM),
        (OTHER, FILE, 0o644, W, StoreMask::MODE, 0o4755, NO, NO),
        (OTHER, FILE, 0o644, W, StoreMask::MODE, 0o755, MAY, MAY),
        (OWNER, FILE, 0o644, I, StoreMask::MODE, 0o4755, MAY, MAY),
        (ADMIN, FILE, 0o644, NONE, StoreMask::OWNER, 0, NO, MAY),
        (ADMIN, FILE, 0o444, W, StoreMask::MODE, 0o4755, MAY, MAY),
        (OTHER, DIRECTORY, 0o755, D, plain, 0, NO, MAY),
        (OTHER, DIRECTORY, 0o755, I, plain, 0, NO, MAY),
        (OTHER, DIRECTORY, 0o755, W | R | L | K | A, plain, 0, MAY, NO),
        (OTHER, SYMLINK, 0o777, W, plain, 0, MAY, MAY),
        (OTHER, SYMLINK, 0o777, D | I, plain, 0, NO, NO),
    ];
    for (row, (id, kind, mode, rights, mask, new_mode, data, alone)) in table.iter().enumerate() {
        let (subject, status) = (subject(*kind, *mode, *rights), status(*mask, *new_mode));
        with_caller(*id, |caller| {
            assert_eq!(store_data(caller, &subject, &status), *data, "row {row}, with data");
            assert_eq!(store_status(caller, &subject, &status), *alone, "row {row}, alone");
        });
    }
}

#[test]
fn owner_and_group_may_be_set_to_what_they_are() {
    let file = subject(FILE, 0o644, W);
    let same = AfsStoreStatus {
        mask: StoreMask::OWNER | StoreMask::GROUP,
        owner: OWNER,
        group: ViceId(0),
        ..AfsStoreStatus::default()
    };
    with_caller(OTHER, |caller| assert_eq!(store_status(caller, &file, &same), Ok(())));
}

#[test]
fn who_may_lock() {
    let check = |id, rights, read: bool, write: bool| {
        with_caller(id, |caller| {
            let file = subject(FILE, 0o644, rights);
            assert_eq!(lock_to_read(caller, &file).is_ok(), read, "{id} {rights:?}");
            assert_eq!(lock_to_write(caller, &file).is_ok(), write, "{id} {rights:?}");
        });
    };
    check(OTHER, K, true, false);
    check(OTHER, W, true, true);
    check(OTHER, R | L | I | D | A, false, false);
    check(OWNER, I, true, true);
    check(OWNER, R | L, false, false);
}

#[test]
fn bits_that_let_others_become_the_owner_are_an_administrators_to_set() {
    with_caller(OWNER, |caller| assert_eq!(stored_mode(caller, 0o107_755), 0o1755));
    with_caller(ADMIN, |caller| assert_eq!(stored_mode(caller, 0o4755), 0o4755));
}
