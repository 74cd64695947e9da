#!/bin/bash
# packages.sh [PACKAGE...]   install the Debian packages that tests and benches use and that are missing, or only these.
#
# As root or through sudo, without a question and without starting (or enabling) any of the services. Where that is
# not possible it says what is missing, and succeeds: the tests that need it skip themselves and are counted as skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/debian.sh

packages=(
    git                              # scripts/repository.sh asks it which files there are
    gcc libc6-dev make               # the C peers
    libopenafs-dev libkrb5-dev       # ... which are linked with OpenAFS's Rx and MIT's GSS-API
    openafs-client                   # rxdebug and the other commands
    openafs-fuse                     # ... and a client that needs no kernel module
    openafs-fileserver openafs-dbserver openafs-krb5 # a cell to talk to
    krb5-kdc krb5-admin-server krb5-user             # ... and its Kerberos realm
    libkdc2-heimdal libkadm5srv8-heimdal libkadm5clnt7-heimdal libsl0-heimdal # what Heimdal's KDC is linked with (tools.sh)
    kstart keyutils                  # what gets tickets for services, and keeps them in the kernel
    iproute2 iputils-ping iperf3     # emulated links, and what they are compared with
    dnsmasq-base                     # a name server that tells of a cell
    fuse3                            # mounting as an ordinary user
    rsync sqlite3 attr git-annex     # programs that work in a mounted cell
    libacl1-dev                      # ... and pjdfstest, which is linked with it
    dpkg-dev                         # what the packages depend on
    etcd-server etcd-client openssl  # a store for the cell's databases, and its certificates
    strace                           # ... and its disk made slow
    protobuf-compiler libprotobuf-dev # ... which its client is built with
    pamtester libcap2-bin openssh-client # logins, and a program that may add groups
    systemd                          # ... and PID 1 of a machine for tests
    dbus libpam-systemd sudo cron gnupg tmux # ... with logins and jobs
    prometheus                       # promtool, which tries the alerts
    restic                           # reads what afar-backup has written
    chromium                         # a browser for the page of who does what
    qemu-system-x86 busybox-static kmod xz-utils # machines with stock kernels (kernels.sh)
)
[ $# = 0 ] || packages=("$@")
# Started at boot by their packages, which tests do not want.
services=(cron openafs-client openafs-fileserver krb5-kdc krb5-admin-server iperf3 nginx etcd prometheus)

if ! command -v dpkg-query > /dev/null; then
    say "this is no Debian system; tests that need one of these are skipped: ${packages[*]}" >&2
    exit 0
fi
# What udev does where it runs: FUSE is for everybody.
if [ -c /dev/fuse ] && [ ! -d /run/udev ] && can_install; then
    as_root chmod 666 /dev/fuse || say "/dev/fuse stays as it is; tests of ordinary users are skipped"
fi
missing=()
for package in "${packages[@]}"; do
    is_installed "$package" || missing+=("$package")
done
[ ${#missing[@]} = 0 ] && exit 0

if ! can_install; then
    say "not root and no sudo: tests that need one of these packages are skipped: ${missing[*]}" >&2
    say "to run them too: apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 0
fi

# preseed PACKAGE QUESTION TYPE VALUE: answers a question of a package that is not configured yet
preseed() { is_installed "$1" || printf '%s %s %s %s\n' "$@" | as_root debconf-set-selections; }

new_services=()
for service in "${services[@]}"; do
    is_installed "$service" || new_services+=("$service")
done

say "installing ${missing[*]}"
refresh_lists
# Who asks for certain packages asks for none of those with questions.
[ $# = 0 ] || preseed() { :; }
preseed krb5-config krb5-config/default_realm string AFAR.TEST
preseed krb5-config krb5-config/add_servers boolean false
preseed krb5-admin-server krb5-admin-server/newrealm note ''
preseed openafs-client openafs-client/thiscell string afar.test
preseed openafs-client openafs-client/cell-info string 127.0.0.1
preseed openafs-client openafs-client/run-client boolean false
preseed openafs-client openafs-client/cachesize string 50000
preseed openafs-fileserver openafs-fileserver/thiscell string afar.test
preseed openafs-fileserver openafs-fileserver/alpha-broken note ''
preseed openafs-fileserver openafs-fileserver/bosconfig_moved note ''
preseed iperf3 iperf3/start_daemon boolean false

if ! install_packages "${missing[@]}"; then
    # One that this release does not have should not keep the others away.
    say "not all at once; trying one by one" >&2
    for package in "${missing[@]}"; do
        install_packages "$package" || say "$package could not be installed; tests that need it are skipped" >&2
    done
fi
if [ -d /run/systemd/system ]; then
    for service in "${new_services[@]}"; do
        as_root systemctl disable --quiet "$service" 2> /dev/null || true
    done
fi
