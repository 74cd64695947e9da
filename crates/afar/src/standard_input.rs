//! The standard input of commands that read it: whether there is one. What is read from it is for the commands.

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use std::io::{Error, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};

/// `/dev/null` of Linux, as major and minor number.
const NULL_DEVICE: (u32, u32) = (1, 3);

/// The standard input, unless the caller has closed it: nothing to read is not the same as a file with nothing in it, which would
/// empty the file that is written.
///
/// Rust's runtime opens `/dev/null` in place of a standard descriptor that is closed, before `main`, so a read would just end. It opens it
/// for reading and writing; a shell's `< /dev/null` is for reading alone, and so is told apart. Who gives `/dev/null` for both is
/// refused too, which is the safe side: such a caller names `/dev/null` as a file where the command takes one.
///
/// # Errors
///
/// When it is closed.
pub(crate) fn get() -> Result<BorrowedFd<'static>, Error> {
    let input = rustix::stdio::stdin();
    if is_placeholder(input)? {
        return Err(Error::new(ErrorKind::NotConnected, "the standard input is closed"));
    }
    Ok(input)
}

fn is_placeholder(input: impl AsFd) -> Result<bool, Error> {
    let status = fstat(&input)?;
    let device = (rustix::fs::major(status.st_rdev), rustix::fs::minor(status.st_rdev));
    let is_null = FileType::from_raw_mode(status.st_mode).is_char_device() && device == NULL_DEVICE;
    Ok(is_null && fcntl_getfl(&input)? & OFlags::RWMODE == OFlags::RDWR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn what_the_runtime_opens_for_a_closed_input_is_told_from_an_empty_one() {
        let both = File::options().read(true).write(true).open("/dev/null").unwrap();
        assert!(is_placeholder(both).unwrap());
        assert!(!is_placeholder(File::open("/dev/null").unwrap()).unwrap());
        assert!(!is_placeholder(File::options().read(true).write(true).open("/dev/zero").unwrap()).unwrap());
        let (read, _write) = std::io::pipe().unwrap();
        assert!(!is_placeholder(read).unwrap());
    }
}
