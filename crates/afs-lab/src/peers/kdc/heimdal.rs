//! Heimdal's KDC in place of MIT's. Debian lets only one of them be installed, so its programs come from where `scripts/tools.sh` has unpacked
//! them.

use super::{Kdc, PASSWORD, PORT, Realm, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where its programs are below the folder of tools.
const KDC: &str = "usr/lib/heimdal-servers/kdc";
const KADMIN: &str = "usr/bin/kadmin.heimdal";
const KSTASH: &str = "usr/sbin/kstash";

/// The folder with Heimdal's programs.
///
/// # Errors
///
/// Why there is none on this machine.
pub fn available() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/heimdal");
    // A library that is missing shows here.
    let output = Command::new(folder.join(KADMIN)).arg("--version").output();
    match output {
        Ok(output) if output.status.success() => Ok(folder),
        Ok(output) => Err(format!("Heimdal's kadmin: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("Heimdal's kadmin: {error}; scripts/tools.sh fetches it")),
    }
}

impl Kdc {
    /// Makes a realm of Heimdal's in a folder, which must exist, and starts its KDC.
    ///
    /// # Errors
    ///
    /// What of it fails, with what the program said.
    pub fn start_heimdal(folder: &Path, realm: &Realm<'_>, programs: &Path) -> Result<Self, String> {
        let Realm { name, address, more } = realm;
        let at = folder.display();
        let conf = format!(
            "[libdefaults]\n default_realm = {name}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n rdns = false\n \
             dns_canonicalize_hostname = false\n default_ccache_name = FILE:{at}/ccache\n{more}\n\
             [realms]\n {name} = {{\n  kdc = {address}:{PORT}\n }}\n[domain_realm]\n\
             [kdc]\n database = {{\n  dbname = {at}/heimdal\n  realm = {name}\n  mkey_file = {at}/stash\n  \
             acl_file = {at}/acl\n  log_file = {at}/changes\n }}\n\
             [logging]\n kdc = FILE:{at}/kdc.log\n default = FILE:{at}/kdc.log\n"
        );
        for (file, text) in [("krb5.conf", conf.as_str()), ("acl", "")] {
            fs::write(folder.join(file), text).map_err(|error| format!("{at}/{file}: {error}"))?;
        }
        let mut kdc = Self {
            name: (*name).to_owned(),
            address: *address,
            folder: folder.to_owned(),
            process: None,
            wrapper: Vec::new(),
            heimdal: Some(programs.to_owned()),
        };
        let key_file = format!("--key-file={at}/stash");
        run(kdc.command(&program(programs, KSTASH)).args(["--random-key", &key_file]))?;
        let lives = ["--realm-max-ticket-life=10h", "--realm-max-renewable-life=7d"];
        admin(&kdc, programs, &[&["init"], &lives[..], &[name]].concat())?;
        kdc.begin()?;
        Ok(kdc)
    }
}

/// The command of the KDC.
pub(super) fn kdc(realm: &Kdc, programs: &Path) -> Command {
    let mut command = realm.command(&program(programs, KDC));
    command.arg(format!("--config-file={}", realm.folder.join("krb5.conf").display()));
    command.args([format!("--ports={PORT}"), format!("--addresses={}", realm.address)]);
    command
}

pub(super) fn add_user(realm: &Kdc, programs: &Path, name: &str) -> Result<(), String> {
    let password = format!("--password={PASSWORD}");
    admin(realm, programs, &["add", &password, "--use-defaults", name])
}

pub(super) fn add_service(
    realm: &Kdc,
    programs: &Path,
    name: &str,
    kind: &str,
    keytab: &Path,
) -> Result<(), String> {
    let config = realm.folder.join("kadmin.conf");
    let mut text = fs::read_to_string(realm.folder.join("krb5.conf")).map_err(|error| error.to_string())?;
    if !kind.is_empty() {
        text += &format!("[kadmin]\n default_keys = {kind}:pw-salt\n");
    }
    fs::write(&config, text).map_err(|error| format!("{}: {error}", config.display()))?;
    let admin = |words: &[&str]| admin_as(realm, programs, &config, words);
    // One that is there stays. The first key of a new one has the number that the cell's own key has, so another is made at once.
    let _ = admin(&["add", "--random-key", "--use-defaults", name]);
    admin(&["cpw", "--random-key", name])?;
    admin(&["ext_keytab", &format!("--keytab={}", keytab.display()), name])
}

/// Asks the database of the realm directly.
fn admin(realm: &Kdc, programs: &Path, words: &[&str]) -> Result<(), String> {
    admin_as(realm, programs, &realm.folder.join("krb5.conf"), words)
}

/// The same with a configuration of its own.
fn admin_as(realm: &Kdc, programs: &Path, config: &Path, words: &[&str]) -> Result<(), String> {
    let mut command = realm.command(&program(programs, KADMIN));
    run(command.args(["-l", "-c"]).arg(config).args(words)).map(drop)
}

fn program(programs: &Path, name: &str) -> String {
    programs.join(name).display().to_string()
}
