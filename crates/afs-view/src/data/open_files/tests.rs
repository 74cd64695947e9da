//! Which files count as open, and what becomes of their hidden names.

use super::*;
use afs_reach::fid::CellIndex;
use afs_wire::ids::{Uniquifier, VnodeNumber, VolumeId};

fn fid(vnode: u32) -> Fid {
    let root = Fid::root_of(CellIndex(1), VolumeId(9));
    Fid { vnode: VnodeNumber(vnode), unique: Uniquifier(5), ..root }
}

/// The hidden names that were to be removed.
#[derive(Debug, Default)]
struct Remover(Mutex<Vec<(Fid, String)>>);

impl RemoveHiddenName for Remover {
    fn remove_hidden_name(self: Arc<Self>, _: User, place: (Fid, String)) {
        self.0.lock().unwrap().push(place);
    }
}

fn open_files(remover: &Arc<Remover>) -> Arc<OpenFiles> {
    let remover: Weak<Remover> = Arc::downgrade(remover);
    Arc::new(OpenFiles::new(Arc::new(rx::TokioRuntime::current()), remover))
}

#[tokio::test]
async fn a_file_that_is_removed_while_it_is_open_keeps_its_hidden_name_until_the_last_close() {
    let remover = Arc::<Remover>::default();
    let (files, dir) = (open_files(&remover), fid(1));
    assert!(files.note_open(fid(2)) && files.note_open(fid(2)));
    let unlink = files.begin_unlink(User::of(1), fid(2));
    assert!(matches!(unlink, Unlink::Open { .. }));
    let hidden = files.hidden_name(dir, fid(2));
    let name = String::from_utf8(hidden.as_bytes().to_vec()).unwrap();
    hidden.given();
    drop(unlink);
    files.close(User::of(1), fid(2), false);
    assert!(remover.0.lock().unwrap().is_empty(), "one has it open");
    files.close(User::of(1), fid(2), false);
    assert_eq!(*remover.0.lock().unwrap(), [(dir, name)]);
}

#[tokio::test]
async fn nobody_opens_a_file_that_is_losing_its_last_name() {
    let files = open_files(&Arc::default());
    let fid = fid(2);
    assert!(files.note_open(fid));
    assert!(files.try_unlink(fid).is_none(), "it is open: it has to be kept");
    assert!(files.note_close(fid, Handle::InUse).is_none() && files.note_close(fid, Handle::InUse).is_none());
    let (one, other) = (files.try_unlink(fid).unwrap(), files.try_unlink(fid).unwrap());
    assert!(!files.note_open(fid) && files.is_being_unlinked(fid));
    drop(one);
    assert!(!files.note_open(fid), "the other operation goes on");
    let mut settled = std::pin::pin!(files.settled(fid));
    assert!(polled(settled.as_mut()).is_none());
    drop(other);
    settled.await;
    assert!(files.note_open(fid) && !files.is_being_unlinked(fid));
    assert!(files.note_close(fid, Handle::InUse).is_none());
    assert!(files.lock().files.is_empty(), "nothing is kept of files that are closed");
}

#[tokio::test]
async fn who_comes_too_late_is_known_of_by_what_takes_the_name() {
    let (files, now) = (open_files(&Arc::default()), Instant::from_nanos(5_000_000_000));
    let unlinking = files.try_unlink(fid(2)).unwrap();
    assert!(!files.note_open(fid(2)));
    assert!(files.note_replaced(now, fid(2), fid(4)), "somebody wanted to open it");
    drop(unlinking);
    assert!(!files.note_replaced(now, fid(4), fid(6)));
    assert!(!files.note_replaced(now, fid(8), fid(2)), "nobody wanted any of these");
    let table = files.lock();
    assert_eq!(table.successor(now, fid(2)), Some(fid(6)));
    assert_eq!(table.successor(now, fid(6)), None);
    assert_eq!(table.successor(now + HELD_FOR, fid(2)), None, "that is long ago");
}

#[tokio::test]
async fn a_hidden_name_is_known_until_it_is_removed() {
    let (files, dir) = (open_files(&Arc::default()), fid(1));
    assert!(files.note_open(fid(2)));
    drop(files.hidden_name(dir, fid(2)));
    assert!(files.listed(dir).hidden().is_empty(), "it was not given to the file");
    let hidden = files.hidden_name(dir, fid(2));
    assert!(is_hidden_name(hidden.as_bytes()));
    let name = String::from_utf8(hidden.as_bytes().to_vec()).unwrap();
    assert_eq!(hidden.given(), None);
    assert_eq!(files.listed(dir).hidden(), std::slice::from_ref(&name));
    assert!(files.listed(fid(3)).hidden().is_empty());
    files.none_going(dir).await;
    assert!(files.lock().hold(fid(2)), "for somebody else too");
    assert_eq!(files.note_close(fid(2), Handle::InUse), None);
    let mut none_going = std::pin::pin!(files.none_going(dir));
    assert!(polled(none_going.as_mut()).is_none(), "nobody has it open");
    assert_eq!(files.note_close(fid(2), Handle::Nobodys), Some((dir, name.clone())));
    assert_eq!(files.listed(dir).hidden(), std::slice::from_ref(&name), "it is being removed");
    assert!(polled(none_going.as_mut()).is_none());
    assert_eq!(files.take_hidden(fid(2)), None);
    let (one, other) = (files.listed(dir), files.listed(dir));
    let elsewhere = files.listed(fid(3));
    files.note_removed(dir, name.clone());
    none_going.await;
    drop(one);
    assert_eq!(other.hidden(), [name], "it may be of pages that have it");
    assert!(elsewhere.hidden().is_empty());
    drop((other, elsewhere));
    assert!(files.listed(dir).hidden().is_empty() && files.lock().files.is_empty());
    assert!(files.lock().listed.is_empty(), "nothing is kept of listings that are made");
}

#[tokio::test]
async fn a_file_that_is_opened_again_keeps_the_hidden_name_that_was_about_to_be_removed() {
    let (files, dir) = (open_files(&Arc::default()), fid(1));
    let place = |hidden: &HiddenName<'_>| (dir, String::from_utf8(hidden.as_bytes().to_vec()).unwrap());
    assert!(files.note_open(fid(2)));
    let hidden = files.hidden_name(dir, fid(2));
    let first = place(&hidden);
    hidden.given();
    assert_eq!(files.note_close(fid(2), Handle::InUse).as_ref(), Some(&first));
    assert!(files.note_open(fid(2)), "it has the name still");
    assert_eq!(files.note_close(fid(2), Handle::InUse), None, "it is about to be removed");
    assert!(files.note_open(fid(2)));
    assert!(files.begin_removal(&first).is_none() && files.is_hidden(fid(2)));
    // One that another takes the place of goes also while the file is open.
    let hidden = files.hidden_name(dir, fid(2));
    let second = place(&hidden);
    assert_eq!(hidden.given().as_ref(), Some(&first));
    assert!(matches!(files.begin_removal(&first), Some(None)));
    files.note_removed(dir, first.1);
    assert_eq!(files.note_close(fid(2), Handle::InUse).as_ref(), Some(&second));
    let unlinking = files.begin_removal(&second).unwrap();
    assert!(!files.note_open(fid(2)) && !files.is_hidden(fid(2)), "nobody opens it any more");
    files.note_removed(dir, second.1);
    drop(unlinking);
    let table = files.lock();
    assert!(table.files.is_empty() && table.hidden.is_empty());
}

#[tokio::test]
async fn what_takes_the_name_of_a_file_is_held_for_who_found_the_file_gone_before_that_was_known() {
    let files = open_files(&Arc::default());
    let now = files.runtime.now();
    let unlinking = files.try_unlink(fid(2)).unwrap();
    // The server has told that it is gone.
    files.hold_successor(User::of(1), fid(2));
    assert!(files.note_replaced(now, fid(2), fid(4)));
    drop(unlinking);
}

/// Returns the result of a future that has one already.
fn polled<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.poll(&mut context) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}
