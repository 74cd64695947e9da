//! The functions that PAM calls and those that it offers, and setting this process's groups. The program for tokens is
//! run in `run`.

#![expect(unsafe_code, reason = "PAM is a library of C, and it loads this as one")]

use crate::{Login, Options, Request, serve};
use nix::unistd::User;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// Values of `_pam_types.h`.
const SUCCESS: c_int = 0;
const IGNORE: c_int = 25;
const ESTABLISH_CREDENTIALS: c_int = 2;
const DELETE_CREDENTIALS: c_int = 4;

/// The name under which the PAG of a login is kept.
const DATA: &CStr = c"afar_pag";

/// The names under which is noted that a login has had tokens, and that it has waited for clients.
const TOKENS: &CStr = c"afar_tokens";
const WAITED: &CStr = c"afar_waited";

/// A login of PAM's. Only PAM knows what is in it.
#[repr(C)]
struct Handle {
    _opaque: [u8; 0],
}

type Cleanup = unsafe extern "C" fn(*mut Handle, *mut c_void, c_int);

unsafe extern "C" {
    fn pam_get_user(pamh: *mut Handle, user: *mut *const c_char, prompt: *const c_char) -> c_int;
    fn pam_get_data(pamh: *const Handle, name: *const c_char, data: *mut *const c_void) -> c_int;
    fn pam_set_data(pamh: *mut Handle, name: *const c_char, data: *mut c_void, end: Option<Cleanup>)
    -> c_int;
    fn pam_getenvlist(pamh: *mut Handle) -> *mut *mut c_char;
}

/// A login that PAM asks about, for as long as it does.
struct PamLogin(*mut Handle);

impl PamLogin {
    /// True if this was noted.
    fn has(&self, name: &CStr) -> bool {
        let mut data = ptr::null();
        // SAFETY: PAM has given the handle for this call; what it gives back is a number, which nobody takes for an address.
        let result = unsafe { pam_get_data(self.0, name.as_ptr(), &raw mut data) };
        result == SUCCESS
    }

    fn note(&self, name: &CStr) {
        // SAFETY: PAM has given the handle for this call, and only keeps the number. Without it, the same is done once more.
        let _ = unsafe { pam_set_data(self.0, name.as_ptr(), ptr::without_provenance_mut(1), None) };
    }
}

impl Login for PamLogin {
    fn user(&self) -> Option<User> {
        let mut name = ptr::null();
        // SAFETY: PAM has given the handle for this call, and gives a text that lives as long as the login does.
        let name = unsafe {
            let result = pam_get_user(self.0, &raw mut name, ptr::null());
            (result == SUCCESS && !name.is_null()).then(|| CStr::from_ptr(name))
        };
        User::from_name(name?.to_str().ok()?).ok().flatten()
    }

    fn pag(&self) -> Option<u32> {
        let mut data = ptr::null();
        // SAFETY: PAM has given the handle for this call; what it gives back is a number, which nobody takes for an address.
        let result = unsafe { pam_get_data(self.0, DATA.as_ptr(), &raw mut data) };
        if result == SUCCESS { u32::try_from(data.addr()).ok().filter(|pag| *pag != 0) } else { None }
    }

    fn set_pag(&self, group: u32) -> bool {
        let data = ptr::without_provenance_mut(group as usize);
        // SAFETY: PAM has given the handle for this call, and only keeps the number.
        unsafe { pam_set_data(self.0, DATA.as_ptr(), data, None) == SUCCESS }
    }

    fn has_tokens(&self) -> bool {
        self.has(TOKENS)
    }

    fn note_tokens(&self) {
        self.note(TOKENS);
    }

    fn has_waited(&self) -> bool {
        self.has(WAITED)
    }

    fn note_waited(&self) {
        self.note(WAITED);
    }

    fn log(&self, text: &str) {
        log(&format!("pam_afar: {text}"));
    }

    fn environment(&self) -> Vec<(String, String)> {
        let mut all = Vec::new();
        // SAFETY: PAM has given the handle for this call. It makes a list of texts that ends with a null, each of them and the list to be
        // freed by whoever has asked.
        unsafe {
            let list = pam_getenvlist(self.0);
            let mut at = list;
            while !at.is_null() && !(*at).is_null() {
                if let Ok((name, value)) =
                    CStr::from_ptr(*at).to_str().map(|text| text.split_once('=').unwrap_or((text, "")))
                {
                    all.push((name.to_owned(), value.to_owned()));
                }
                libc::free((*at).cast());
                at = at.add(1);
            }
            libc::free(list.cast());
        }
        all
    }
}

/// Sets the groups of this process, with all of its threads.
pub(crate) fn set_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: the kernel reads so many groups.
    let result = unsafe { libc::setgroups(groups.len(), groups.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Serves a request of PAM. Nothing of this keeps anybody out, and no panic goes into PAM.
fn called(pamh: *mut Handle, argc: c_int, argv: *const *const c_char, request: Request) -> c_int {
    let words = (0..usize::try_from(argc).unwrap_or(0)).filter_map(|n| {
        // SAFETY: PAM gives so many texts, which live as long as the module is loaded.
        unsafe { CStr::from_ptr(*argv.add(n)) }.to_str().ok()
    });
    let options = Options::parse(words);
    match catch_unwind(AssertUnwindSafe(|| serve(&PamLogin(pamh), request, &options))) {
        Ok(Ok(true)) => SUCCESS,
        Ok(Ok(false)) | Err(_) => IGNORE,
        Ok(Err(why)) => {
            log(&format!("pam_afar: {why}"));
            IGNORE
        }
    }
}

/// Says something in the log of logins.
fn log(text: &str) {
    let text: Vec<u8> = text.bytes().filter(|byte| *byte != 0).chain([0]).collect();
    // SAFETY: the format takes one text, which ends with a null.
    unsafe { libc::syslog(libc::LOG_AUTHPRIV | libc::LOG_INFO, c"%s".as_ptr(), text.as_ptr()) }
}

/// Says nothing about who the user is: other modules find that out.
#[unsafe(no_mangle)]
extern "C" fn pam_sm_authenticate(_: *mut Handle, _: c_int, _: c_int, _: *const *const c_char) -> c_int {
    IGNORE
}

/// Credentials begin, are new, or end.
///
/// # Safety
///
/// The handle is PAM's, and there are so many arguments.
#[unsafe(no_mangle)]
unsafe extern "C" fn pam_sm_setcred(
    pamh: *mut Handle,
    flags: c_int,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    let request = if flags & DELETE_CREDENTIALS != 0 {
        Request::End
    } else if flags & ESTABLISH_CREDENTIALS != 0 {
        Request::Begin
    } else {
        Request::Renew
    };
    called(pamh, argc, argv, request)
}

/// A session begins.
///
/// # Safety
///
/// As [`pam_sm_setcred`].
#[unsafe(no_mangle)]
unsafe extern "C" fn pam_sm_open_session(
    pamh: *mut Handle,
    _: c_int,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    called(pamh, argc, argv, Request::Begin)
}

/// A session ends.
///
/// # Safety
///
/// As [`pam_sm_setcred`].
#[unsafe(no_mangle)]
unsafe extern "C" fn pam_sm_close_session(
    pamh: *mut Handle,
    _: c_int,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    called(pamh, argc, argv, Request::End)
}
