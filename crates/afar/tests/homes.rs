//! Homes in AFS on a machine with systemd: what docs/users.md says of services there is run here, with the PAM stacks, `systemd --user`, sudo and
//! gpg of Debian.

use crate::mounted::skip;
use afs_lab::peers::systemd::Machine;
use std::path::Path;

/// The folder with alice's home, as the administrator's mount has it.
const HOME: &str = "/mnt/adm/afar.local/scratch/alice";

const PAGSH: &str = "/usr/lib/afar/bin/pagsh";
const KLOG: &str = "/usr/bin/afar klog -principal alice -keytab /srv/alice.keytab";

const CELL: &str = "[Service]\nType=exec\nEnvironment=HOME=/root\n\
    ExecStart=/usr/bin/afar up --no-mount --realm --state /srv/cell --bind 127.0.0.7\n";
const CLIENT: &str = "[Service]\nType=notify\nEnvironment=HOME=/root\n\
    ExecStart=/usr/bin/afar mount /afs --config /srv/cell/etc --cache /var/cache/client\n";
const ADMINISTRATOR: &str = "[Service]\nType=notify\nEnvironment=HOME=/root\n\
    ExecStart=/usr/bin/afar mount /mnt/adm --config /srv/cell/etc --cache /var/cache/adm --localauth\n";

/// A user of the realm and of the machine, with a keytab, and a home in AFS that nobody else can read. Her services outlast her logins by more than
/// the ten seconds that logind gives them.
const SETUP: &str = "
    mkdir -p /usr/lib/afar/bin
    ln -s /usr/bin/afar /usr/lib/afar/bin/aklog
    ln -s /usr/bin/afar /usr/lib/afar/bin/pagsh
    install -m 755 /usr/bin/afar /usr/lib/afar/afar-pagsh
    setcap cap_setgid+ep /usr/lib/afar/afar-pagsh
    cp /srv/cell/realm/krb5.conf /etc/krb5.conf
    chmod 644 /etc/krb5.conf
    export KRB5_KDC_PROFILE=/srv/cell/realm/kdc.conf
    kadmin.local -q 'addprinc -pw secret alice'
    kadmin.local -q 'ktadd -k /srv/alice.keytab -norandkey alice'
    mkdir -p /var/lib/systemd/linger
    touch /var/lib/systemd/linger/alice
    useradd --uid 1500 --home-dir /afs/afar.local/scratch/alice --no-create-home --shell /bin/bash alice
    chown alice /srv/alice.keytab
    afar pts createuser alice -id 1500 -localauth -config /srv/cell/etc/server
    mkdir /mnt/adm/afar.local/scratch/alice
    chown alice /mnt/adm/afar.local/scratch/alice
    chmod 755 /mnt/adm/afar.local/scratch/alice
    afar fs setacl /mnt/adm/afar.local/scratch/alice alice all system:anyuser l -clear
    pam-auth-update --package
    chmod 755 /srv
";

struct Site {
    machine: Machine,
}

impl Site {
    fn new() -> Option<Self> {
        let afar = Path::new(env!("CARGO_BIN_EXE_afar"));
        let module = afar.with_file_name("libpam_afar.so");
        if !module.exists() {
            return skip("the PAM module is not built");
        }
        for program in ["sudo", "gpg", "kadmin.local", "setcap", "crontab", "k5start", "krenew", "tmux"] {
            if !["/usr/bin", "/usr/sbin"].iter().any(|folder| Path::new(folder).join(program).exists()) {
                return skip(&format!("{program} is not installed"));
            }
        }
        let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
        let machine = Machine::boot(&[
            (afar, "/usr/bin/afar"),
            (&module, "/usr/lib/x86_64-linux-gnu/security/pam_afar.so"),
            (&packaging.join("debian/afar.pam-config"), "/usr/share/pam-configs/afar"),
            (&packaging.join("systemd/user/afar-renew.service"), "/usr/lib/systemd/user/afar-renew.service"),
            (&packaging.join("systemd/user/afar-renew.timer"), "/usr/lib/systemd/user/afar-renew.timer"),
        ])?;
        for (name, text) in [("cell", CELL), ("client", CLIENT), ("adm", ADMINISTRATOR)] {
            machine.write(&format!("/etc/systemd/system/{name}.service"), text);
        }
        machine.succeed(&["systemctl", "daemon-reload"]);
        for name in ["cell", "client", "adm", "dbus", "systemd-logind"] {
            machine.succeed(&["systemctl", "start", name]);
            if name == "cell" {
                let config = "/srv/cell/etc/server";
                machine.until(&["afar", "pts", "examine", "system:anyuser", "-localauth", "-config", config]);
            }
        }
        let site = Self { machine };
        site.root(&format!("set -e; {SETUP}"));
        Some(site)
    }

    /// The options of the module, in all of PAM's stacks.
    fn pam(&self, options: &str) {
        let change = format!(
            "sed -i -E 's/(pam_afar\\.so).*/\\1 {options}/' /etc/pam.d/common-auth /etc/pam.d/common-session \
             /etc/pam.d/common-session-noninteractive && grep -c pam_afar /etc/pam.d/common-session"
        );
        assert_eq!(self.root(&change).trim(), "1");
    }

    fn root(&self, text: &str) -> String {
        self.machine.succeed(&["bash", "-c", text])
    }

    /// A program of alice's outside of logins, as those of `systemd --user` are; the words before it in a command line.
    const ALICE: [&str; 6] = [
        "setpriv",
        "--reuid=1500",
        "--regid=1500",
        "--init-groups",
        "env",
        "HOME=/afs/afar.local/scratch/alice",
    ];

    fn alice_words(text: &str) -> Vec<&str> {
        [&Self::ALICE[..], &["XDG_RUNTIME_DIR=/run/user/1500", "bash", "-c", text]].concat()
    }

    fn alice(&self, text: &str) -> String {
        self.machine.succeed(&Self::alice_words(text))
    }

    /// What a login of alice's says.
    fn login(&self, text: &str) -> String {
        self.machine.succeed(&["su", "-", "alice", "-c", text])
    }

    /// A ticket in alice's default cache. (No module here has her password.)
    fn kinit(&self) {
        self.alice("kinit -r 7d -k -t /srv/alice.keytab alice");
    }

    /// The tokens that alice has outside of PAGs.
    fn tokens_of_alice(&self) -> usize {
        let told: serde_json::Value = serde_json::from_str(&self.alice("afar tokens -json")).unwrap();
        told.as_array().unwrap().len()
    }

    /// A file in alice's home, read in a PAG of its own.
    fn read(&self, name: &str) -> String {
        self.alice(&format!("{PAGSH} -c '{KLOG} && cat ~/{name}'"))
    }

    /// Waits until a file in alice's home has something in it.
    fn until_written(&self, name: &str) {
        self.machine.until(&["test", "-s", &format!("{HOME}/{name}")]);
    }
}

fn is_in_pag(groups: &str) -> bool {
    groups.split_whitespace().any(|group| group.parse::<u32>().is_ok_and(|group| group >> 24 == 0x41))
}

/// `systemd --user` was in a PAG of its own without a token, and so was everything that it started.
#[test]
fn the_services_of_a_user_with_a_home_in_afs_have_the_token_of_the_login() {
    let Some(site) = Site::new() else { return };
    site.pam("nopag always_aklog");
    site.kinit();
    assert!(!is_in_pag(&site.login("echo x > ~/by-login; id -G")));
    site.machine.succeed(&["systemctl", "start", "user@1500.service"]);
    site.alice("mkdir -p ~/.config/systemd/user");
    let unit = "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'echo x > ~/by-unit'\n";
    site.alice(&format!("echo \"{unit}\" > ~/.config/systemd/user/own.service"));
    site.alice("systemctl --user daemon-reload && systemctl --user start own.service && test -s ~/by-unit");
    site.alice(
        "systemd-run --user --wait --collect --quiet gpg --batch --passphrase '' --quick-gen-key 'A <a@b.test>' \
         && gpg --list-keys a@b.test && test -s ~/.gnupg/pubring.kbx",
    );
    site.root("sudo -n -u alice sh -c 'echo x > ~alice/by-sudo'");
    site.until_written("by-sudo");
}

/// Jobs with a keytab had no recipe, and `k5start` with a command ended with "cannot create PAG"; what a login left behind was anonymous at once.
#[test]
fn jobs_of_cron_and_those_that_a_login_leaves_behind_have_their_tokens() {
    let Some(site) = Site::new() else { return };
    site.pam("always_aklog retain_after_close");

    // No ticket of a login helps these two. cron begins what is for the start of the machine at once.
    let k5start =
        "AKLOG=/usr/lib/afar/bin/aklog k5start -q -t -b -K 30 -p /tmp/job.pid -f /srv/alice.keytab alice";
    let crontab = format!(
        "@reboot {PAGSH} -c '{KLOG} && exec sh -c \"id -G > ~/by-cron\"'\n\
         @reboot KRB5CCNAME=FILE:/tmp/job.cache {PAGSH} -c '{k5start} && id -G > ~/by-k5start; kill $(cat /tmp/job.pid)'\n"
    );
    site.machine.write("/srv/crontab", crontab);
    site.root("crontab -u alice /srv/crontab && systemctl start cron");
    for name in ["by-cron", "by-k5start"] {
        site.until_written(name);
        assert!(is_in_pag(&site.read(name)), "{name}");
    }
    assert_eq!(site.tokens_of_alice(), 0, "they were in PAGs of their own");

    // Each of these goes on when the login that began it has long ended.
    site.kinit();
    let after = |name: &str| format!("until [ -e /srv/go ]; do sleep 0.1; done; krenew -t; id -G > ~/{name}");
    let krenew = "export AKLOG=/usr/lib/afar/bin/aklog;";
    site.login(&format!("{krenew} nohup sh -c '{}' > /dev/null 2>&1 &", after("by-nohup")));
    site.login(&format!("{krenew} tmux new-session -d \"{}\"", after("by-tmux")));
    site.machine.write("/srv/go", "");
    for name in ["by-nohup", "by-tmux"] {
        site.until_written(name);
        assert!(is_in_pag(&site.read(name)), "{name}");
    }
    assert_eq!(site.tokens_of_alice(), 0, "each login has a PAG");

    // Services are anonymous until the login gives them its ticket.
    site.alice("kdestroy");
    site.machine.succeed(&["systemctl", "restart", "user@1500.service"]);
    site.kinit();
    site.login("mkdir -p ~/.config/systemd/user");
    let unit = "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'echo x > ~/by-unit'\n";
    site.login(&format!("echo \"{unit}\" > ~/.config/systemd/user/own.service"));
    let profile = "systemctl --user import-environment KRB5CCNAME; systemctl --user start afar-renew.timer; systemctl --user daemon-reload";
    site.login(&format!("echo '{profile}' > ~/.profile"));
    site.login("systemctl --user start own.service && test -s ~/by-unit");
    assert_eq!(site.tokens_of_alice(), 1, "that of her services");
}
