//! MIT Kerberos's libkrb5: its functions, the one structure of it that callers must know, and owners of what it gives. The only `unsafe`
//! of this crate. Each method is safe to call and does one thing.
//!
//! A context of the library is for one thread at a time: [`Kerberos`] and all that borrows it stay where they were made.

#![expect(unsafe_code, reason = "the one file that calls a library in C")]

mod layout;

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::ptr;

use libloading::Library;
use zeroize::Zeroizing;

use crate::error::{Error, Unusable};
use crate::library::{Ticket, TicketLife};
use layout::{Creds, Opaque, PrincipalPtr};

/// The library's name with the number of its interface, which has been 3 since release 1.2 of 2000. Heimdal's is `libkrb5.so.26`: its
/// `krb5_creds` is another structure, so it is not a substitute.
pub(crate) const LIBRARY: &str = "libkrb5.so.3";

/// Most bytes of a key, a ticket or a text that are taken from the library: far above what there is.
const LENGTH_MAX: usize = 1 << 20;

type ContextPtr = *mut Opaque;
type CachePtr = *mut Opaque;
type KeytabPtr = *mut Opaque;
type OptionsPtr = *mut Opaque;
type Prompter = Option<
    unsafe extern "C" fn(ContextPtr, *mut c_void, *const c_char, *const c_char, i32, *mut c_void) -> i32,
>;

/// Declares the table of functions and how it is filled.
macro_rules! functions {
    ($( $name:ident ( $($arg:ty),* $(,)? ) $(-> $result:ty)?; )*) => {
        struct Functions { $( $name: unsafe extern "C" fn($($arg),*) $(-> $result)?, )* }

        impl Functions {
            fn find(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: the types are those of krb5.h for these names, and `Kerberos` keeps the library loaded for as long as it has
                // the table.
                Ok(Self { $(
                    $name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }?,
                )* })
            }
        }
    };
}

functions! {
    krb5_init_context(*mut ContextPtr) -> i32;
    krb5_free_context(ContextPtr);
    krb5_get_error_message(ContextPtr, i32) -> *const c_char;
    krb5_free_error_message(ContextPtr, *const c_char);
    krb5_cc_default(ContextPtr, *mut CachePtr) -> i32;
    krb5_cc_resolve(ContextPtr, *const c_char, *mut CachePtr) -> i32;
    krb5_cc_new_unique(ContextPtr, *const c_char, *const c_char, *mut CachePtr) -> i32;
    krb5_cc_get_full_name(ContextPtr, CachePtr, *mut *mut c_char) -> i32;
    krb5_cc_get_principal(ContextPtr, CachePtr, *mut PrincipalPtr) -> i32;
    krb5_cc_initialize(ContextPtr, CachePtr, PrincipalPtr) -> i32;
    krb5_cc_store_cred(ContextPtr, CachePtr, *mut Creds) -> i32;
    krb5_cc_close(ContextPtr, CachePtr) -> i32;
    krb5_cc_destroy(ContextPtr, CachePtr) -> i32;
    krb5_free_string(ContextPtr, *mut c_char);
    krb5_parse_name(ContextPtr, *const c_char, *mut PrincipalPtr) -> i32;
    krb5_unparse_name(ContextPtr, PrincipalPtr, *mut *mut c_char) -> i32;
    krb5_free_unparsed_name(ContextPtr, *mut c_char);
    krb5_free_principal(ContextPtr, PrincipalPtr);
    krb5_get_credentials(ContextPtr, i32, CachePtr, *mut Creds, *mut *mut Creds) -> i32;
    krb5_free_creds(ContextPtr, *mut Creds);
    krb5_free_cred_contents(ContextPtr, *mut Creds);
    krb5_get_renewed_creds(ContextPtr, *mut Creds, PrincipalPtr, CachePtr, *const c_char) -> i32;
    krb5_get_host_realm(ContextPtr, *const c_char, *mut *mut *mut c_char) -> i32;
    krb5_free_host_realm(ContextPtr, *const *mut c_char) -> i32;
    krb5_get_default_realm(ContextPtr, *mut *mut c_char) -> i32;
    krb5_free_default_realm(ContextPtr, *mut c_char);
    krb5_get_init_creds_opt_alloc(ContextPtr, *mut OptionsPtr) -> i32;
    krb5_get_init_creds_opt_free(ContextPtr, OptionsPtr);
    krb5_get_init_creds_opt_set_tkt_life(OptionsPtr, i32);
    krb5_get_init_creds_opt_set_renew_life(OptionsPtr, i32);
    krb5_get_init_creds_password(
        ContextPtr, *mut Creds, PrincipalPtr, *const c_char, Prompter, *mut c_void, i32, *const c_char, OptionsPtr,
    ) -> i32;
    krb5_get_init_creds_keytab(
        ContextPtr, *mut Creds, PrincipalPtr, KeytabPtr, i32, *const c_char, OptionsPtr,
    ) -> i32;
    krb5_prompter_posix(ContextPtr, *mut c_void, *const c_char, *const c_char, i32, *mut c_void) -> i32;
    krb5_kt_resolve(ContextPtr, *const c_char, *mut KeytabPtr) -> i32;
    krb5_kt_close(ContextPtr, KeytabPtr) -> i32;
}

/// `EINVAL`, for texts with a NUL in them, which the library cannot be asked about.
const EINVAL: i32 = 22;

fn c_string(text: &str) -> Result<CString, Error> {
    CString::new(text)
        .map_err(|_| Error { code: EINVAL, text: "a name or password must not contain a NUL".to_owned() })
}

/// The library, and its context: what krb5.conf says.
pub struct Kerberos {
    functions: Box<Functions>,
    context: ContextPtr,
    // Last, so that it goes last: the functions are in it.
    _library: Library,
}

impl fmt::Debug for Kerberos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kerberos").finish_non_exhaustive()
    }
}

impl Drop for Kerberos {
    fn drop(&mut self) {
        if !self.context.is_null() {
            // SAFETY: it was made by the library, and all that borrows it has gone before.
            unsafe { (self.functions.krb5_free_context)(self.context) };
        }
    }
}

impl Kerberos {
    /// Opens the library, and reads krb5.conf.
    ///
    /// # Errors
    ///
    /// When there is none on this machine, or its configuration is damaged.
    pub fn open() -> Result<Self, Unusable> {
        // SAFETY: what the library does when it is loaded is harmless: programs that are linked with it do the same at their start.
        let library = unsafe { Library::new(LIBRARY) }.map_err(Unusable::Missing)?;
        let functions = Functions::find(&library).map(Box::new).map_err(Unusable::Missing)?;
        let mut kerberos = Self { functions, context: ptr::null_mut(), _library: library };
        let mut context = ptr::null_mut();
        // SAFETY: the library writes a pointer, which lives until it returns.
        let code = unsafe { (kerberos.functions.krb5_init_context)(&raw mut context) };
        // Without a context it has words for the number alone.
        kerberos.check(code).map_err(Unusable::Configuration)?;
        kerberos.context = context;
        Ok(kerberos)
    }

    fn check(&self, code: i32) -> Result<(), Error> {
        if code == 0 { Ok(()) } else { Err(self.error(code)) }
    }

    fn error(&self, code: i32) -> Error {
        // SAFETY: the context is null, which is allowed, or that of the library; the text is read before it is freed.
        let text = unsafe {
            let words = (self.functions.krb5_get_error_message)(self.context, code);
            let text = text_of(words);
            (self.functions.krb5_free_error_message)(self.context, words);
            text
        };
        Error { code, text }
    }

    /// The cache of the environment's KRB5CCNAME, else the one that krb5.conf says. It need not exist.
    ///
    /// # Errors
    ///
    /// When that names no cache of a kind that the library knows.
    pub fn default_cache(&self) -> Result<Cache<'_>, Error> {
        let mut cache = ptr::null_mut();
        // SAFETY: the context is good, and the library writes a pointer that lives until it returns.
        self.check(unsafe { (self.functions.krb5_cc_default)(self.context, &raw mut cache) })?;
        Ok(Cache { kerberos: self, cache, is_temporary: false })
    }

    /// The cache of a name such as `FILE:/tmp/x`. It need not exist.
    ///
    /// # Errors
    ///
    /// When the library knows no such kind of cache.
    pub fn cache(&self, name: &str) -> Result<Cache<'_>, Error> {
        let (name, mut cache) = (c_string(name)?, ptr::null_mut());
        // SAFETY: as above; the name lives until the library returns.
        let code = unsafe { (self.functions.krb5_cc_resolve)(self.context, name.as_ptr(), &raw mut cache) };
        self.check(code)?;
        Ok(Cache { kerberos: self, cache, is_temporary: false })
    }

    /// A new cache in this process's memory, or one of another kind such as `FILE` that stays.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    pub fn new_cache(&self, kind: &str) -> Result<Cache<'_>, Error> {
        let is_temporary = kind == "MEMORY";
        let (kind, mut cache) = (c_string(kind)?, ptr::null_mut());
        // SAFETY: as above; a hint may be null.
        let code = unsafe {
            (self.functions.krb5_cc_new_unique)(self.context, kind.as_ptr(), ptr::null(), &raw mut cache)
        };
        self.check(code)?;
        Ok(Cache { kerberos: self, cache, is_temporary })
    }

    /// The realm of a host by krb5.conf's domain_realm; empty if that says nothing, which asks for a referral.
    ///
    /// # Errors
    ///
    /// The library's.
    pub fn host_realm(&self, host: &str) -> Result<String, Error> {
        let (host, mut realms) = (c_string(host)?, ptr::null_mut::<*mut c_char>());
        // SAFETY: as above. The list ends with a null pointer and is freed once, after it is read.
        unsafe {
            let code = (self.functions.krb5_get_host_realm)(self.context, host.as_ptr(), &raw mut realms);
            self.check(code)?;
            let first = if realms.is_null() { String::new() } else { text_of(*realms) };
            if !realms.is_null() {
                (self.functions.krb5_free_host_realm)(self.context, realms);
            }
            Ok(first)
        }
    }

    /// The realm of krb5.conf's default_realm.
    ///
    /// # Errors
    ///
    /// When it says none.
    pub fn default_realm(&self) -> Result<String, Error> {
        let mut realm = ptr::null_mut();
        // SAFETY: as above; the text is freed once, after it is read.
        unsafe {
            self.check((self.functions.krb5_get_default_realm)(self.context, &raw mut realm))?;
            let text = text_of(realm);
            (self.functions.krb5_free_default_realm)(self.context, realm);
            Ok(text)
        }
    }

    fn parse(&self, name: &str) -> Result<Name<'_>, Error> {
        let (name, mut principal) = (c_string(name)?, ptr::null_mut());
        // SAFETY: as above.
        let code =
            unsafe { (self.functions.krb5_parse_name)(self.context, name.as_ptr(), &raw mut principal) };
        self.check(code)?;
        Ok(Name { kerberos: self, principal })
    }

    /// The library's text for a principal.
    fn unparsed(&self, principal: PrincipalPtr) -> Result<String, Error> {
        if principal.is_null() {
            return Ok(String::new());
        }
        let mut text = ptr::null_mut();
        // SAFETY: the principal is the library's and was not freed; the text is freed once, after it is read.
        unsafe {
            self.check((self.functions.krb5_unparse_name)(self.context, principal, &raw mut text))?;
            let name = text_of(text);
            (self.functions.krb5_free_unparsed_name)(self.context, text);
            Ok(name)
        }
    }

    /// Asks the KDC for a ticket-granting ticket with a password. Without one, the library asks for it on the terminal, and for a new
    /// one where the KDC wants that.
    ///
    /// # Errors
    ///
    /// The KDC's, such as a wrong password, or that none answers; that the user has interrupted the question.
    pub fn log_in_by_password(
        &self,
        client: &str,
        password: Option<&Zeroizing<String>>,
        life: TicketLife,
    ) -> Result<Credentials<'_>, Error> {
        let client = self.parse(client)?;
        let mut bytes = Zeroizing::new(Vec::with_capacity(password.map_or(1, |given| given.len() + 1)));
        bytes.extend_from_slice(password.map_or(&[][..], |given| given.as_bytes()));
        bytes.push(0);
        let text = CStr::from_bytes_with_nul(&bytes)
            .map_err(|_| Error { code: EINVAL, text: "a password must not contain a NUL".to_owned() })?;
        let (text, prompter): (_, Prompter) = match password {
            Some(_) => (text.as_ptr(), None),
            None => (ptr::null(), Some(self.functions.krb5_prompter_posix)),
        };
        let options = self.options(life)?;
        let mut creds = Box::new(Creds::EMPTY);
        // SAFETY: everything that is pointed to lives until the library returns. Without a prompter it asks nobody, its own needs no
        // data, and the last two pointers may be null. It fills the credentials in, or leaves them empty.
        let code = unsafe {
            (self.functions.krb5_get_init_creds_password)(
                self.context,
                &raw mut *creds,
                client.principal,
                text,
                prompter,
                ptr::null_mut(),
                0,
                ptr::null(),
                options.0,
            )
        };
        self.check(code)?;
        Ok(Credentials { kerberos: self, creds })
    }

    /// Asks the KDC for a ticket-granting ticket with a key of a keytab, such as `FILE:/etc/krb5.keytab`.
    ///
    /// # Errors
    ///
    /// When the keytab cannot be read or has no key of that principal, and the KDC's.
    pub fn log_in_by_keytab(
        &self,
        client: &str,
        keytab: &str,
        life: TicketLife,
    ) -> Result<Credentials<'_>, Error> {
        let client = self.parse(client)?;
        let options = self.options(life)?;
        let (name, mut table) = (c_string(keytab)?, ptr::null_mut());
        let mut creds = Box::new(Creds::EMPTY);
        // SAFETY: as above; the keytab is closed once, after it was used.
        let code = unsafe {
            self.check((self.functions.krb5_kt_resolve)(self.context, name.as_ptr(), &raw mut table))?;
            let code = (self.functions.krb5_get_init_creds_keytab)(
                self.context,
                &raw mut *creds,
                client.principal,
                table,
                0,
                ptr::null(),
                options.0,
            );
            let outcome = self.check(code);
            (self.functions.krb5_kt_close)(self.context, table);
            outcome
        };
        code?;
        Ok(Credentials { kerberos: self, creds })
    }

    fn options(&self, life: TicketLife) -> Result<LoginOptions<'_>, Error> {
        let mut options = ptr::null_mut();
        // SAFETY: as above. The setters take what was allocated.
        unsafe {
            self.check((self.functions.krb5_get_init_creds_opt_alloc)(self.context, &raw mut options))?;
            if let Some(seconds) = life.seconds {
                (self.functions.krb5_get_init_creds_opt_set_tkt_life)(
                    options,
                    c_int::try_from(seconds).unwrap_or(c_int::MAX),
                );
            }
            if let Some(seconds) = life.renewable_seconds {
                (self.functions.krb5_get_init_creds_opt_set_renew_life)(
                    options,
                    c_int::try_from(seconds).unwrap_or(c_int::MAX),
                );
            }
        }
        Ok(LoginOptions(options, self))
    }
}

/// A text of the library's; empty for none.
///
/// # Safety
///
/// The pointer is null, or leads to a text that ends with a NUL and lives until this returns.
unsafe fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A copy of bytes of the library's.
///
/// # Safety
///
/// The pointer leads to so many bytes that live until this returns, or the length is 0.
unsafe fn bytes_of(data: *const u8, length: c_uint) -> Vec<u8> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if data.is_null() || length > LENGTH_MAX {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data, length) }.to_vec()
}

struct LoginOptions<'a>(OptionsPtr, &'a Kerberos);

impl Drop for LoginOptions<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated by the library, and freed once.
        unsafe { (self.1.functions.krb5_get_init_creds_opt_free)(self.1.context, self.0) };
    }
}

/// A principal as the library has it.
struct Name<'a> {
    kerberos: &'a Kerberos,
    principal: PrincipalPtr,
}

impl Drop for Name<'_> {
    fn drop(&mut self) {
        // SAFETY: made by the library, and freed once.
        unsafe { (self.kerberos.functions.krb5_free_principal)(self.kerberos.context, self.principal) };
    }
}

/// A ticket with its key, as the library has it: to be stored in a cache.
pub struct Credentials<'a> {
    kerberos: &'a Kerberos,
    creds: Box<Creds>,
}

impl fmt::Debug for Credentials<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

impl Drop for Credentials<'_> {
    fn drop(&mut self) {
        // SAFETY: what they point to is the library's, and is freed once; it overwrites keys.
        unsafe {
            (self.kerberos.functions.krb5_free_cred_contents)(self.kerberos.context, &raw mut *self.creds);
        };
    }
}

impl Credentials<'_> {
    /// The ticket in them.
    ///
    /// # Errors
    ///
    /// The library's, for a name that it cannot write.
    pub fn ticket(&self) -> Result<Ticket, Error> {
        ticket_of(self.kerberos, &self.creds)
    }
}

fn ticket_of(kerberos: &Kerberos, creds: &Creds) -> Result<Ticket, Error> {
    Ok(Ticket {
        client: kerberos.unparsed(creds.client)?,
        server: kerberos.unparsed(creds.server)?,
        key_kind: creds.key.kind,
        // SAFETY: the library has filled them in, and nothing of it was freed.
        key: Zeroizing::new(unsafe { bytes_of(creds.key.contents, creds.key.length) }),
        // A ticket that says no start begins when it was asked for.
        start: if creds.times.start == 0 { creds.times.authenticated } else { creds.times.start },
        end: creds.times.end,
        renewable_until: creds.times.renewable_until,
        // SAFETY: as above.
        bytes: unsafe { bytes_of(creds.ticket.data.cast(), creds.ticket.length) },
    })
}

/// A credential cache. One in memory goes with this.
pub struct Cache<'a> {
    kerberos: &'a Kerberos,
    cache: CachePtr,
    is_temporary: bool,
}

impl fmt::Debug for Cache<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}

impl Drop for Cache<'_> {
    fn drop(&mut self) {
        let functions = &self.kerberos.functions;
        let end = if self.is_temporary { functions.krb5_cc_destroy } else { functions.krb5_cc_close };
        // SAFETY: opened by the library, and closed or destroyed once. Nobody is told of a failure: there is nothing to be done.
        unsafe { end(self.kerberos.context, self.cache) };
    }
}

impl Cache<'_> {
    /// Its name, such as `FILE:/tmp/krb5cc_0`.
    ///
    /// # Errors
    ///
    /// The library's.
    pub fn name(&self) -> Result<String, Error> {
        let (kerberos, mut name) = (self.kerberos, ptr::null_mut());
        // SAFETY: the cache is open; the text is freed once, after it is read.
        unsafe {
            kerberos.check((kerberos.functions.krb5_cc_get_full_name)(
                kerberos.context,
                self.cache,
                &raw mut name,
            ))?;
            let text = text_of(name);
            (kerberos.functions.krb5_free_string)(kerberos.context, name);
            Ok(text)
        }
    }

    fn owner(&self) -> Result<Name<'_>, Error> {
        let (kerberos, mut principal) = (self.kerberos, ptr::null_mut());
        // SAFETY: the cache is open, and the library writes a pointer that lives until it returns.
        let code = unsafe {
            (kerberos.functions.krb5_cc_get_principal)(kerberos.context, self.cache, &raw mut principal)
        };
        kerberos.check(code)?;
        Ok(Name { kerberos, principal })
    }

    /// The owner of the cache, as the library writes it.
    ///
    /// # Errors
    ///
    /// When there is no such cache or nothing in it.
    pub fn principal(&self) -> Result<String, Error> {
        self.kerberos.unparsed(self.owner()?.principal)
    }

    /// Empties it, and stores credentials in it as those of its owner.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn begin_with(&self, credentials: &mut Credentials<'_>) -> Result<(), Error> {
        let kerberos = self.kerberos;
        // SAFETY: cache and credentials are the library's, and it keeps no pointer into these.
        unsafe {
            kerberos.check((kerberos.functions.krb5_cc_initialize)(
                kerberos.context,
                self.cache,
                credentials.creds.client,
            ))?;
            kerberos.check((kerberos.functions.krb5_cc_store_cred)(
                kerberos.context,
                self.cache,
                &raw mut *credentials.creds,
            ))
        }
    }

    /// A ticket for a service: from the cache, else from the KDC, and then into the cache.
    ///
    /// # Errors
    ///
    /// The KDC's, or that none answers.
    pub fn ticket(&self, service: &str) -> Result<Ticket, Error> {
        let kerberos = self.kerberos;
        let (client, server) = (self.owner()?, kerberos.parse(service)?);
        let mut wanted = Creds { client: client.principal, server: server.principal, ..Creds::EMPTY };
        let mut found = ptr::null_mut();
        // SAFETY: what is wanted lives until the library returns, which takes nothing of it; what it has found is ours, is read, and is
        // freed once.
        unsafe {
            let code = (kerberos.functions.krb5_get_credentials)(
                kerberos.context,
                0,
                self.cache,
                &raw mut wanted,
                &raw mut found,
            );
            kerberos.check(code)?;
            let ticket = ticket_of(kerberos, &*found);
            (kerberos.functions.krb5_free_creds)(kerberos.context, found);
            ticket
        }
    }

    /// Has the KDC renew its ticket-granting ticket. The new one is not stored yet.
    ///
    /// # Errors
    ///
    /// The KDC's: among others, that the ticket cannot be renewed, or not any more.
    pub fn renewed(&self) -> Result<Credentials<'_>, Error> {
        let (kerberos, client) = (self.kerberos, self.owner()?);
        let mut creds = Box::new(Creds::EMPTY);
        // SAFETY: as above; a null service is the ticket-granting one.
        let code = unsafe {
            (kerberos.functions.krb5_get_renewed_creds)(
                kerberos.context,
                &raw mut *creds,
                client.principal,
                self.cache,
                ptr::null(),
            )
        };
        kerberos.check(code)?;
        Ok(Credentials { kerberos, creds })
    }
}
