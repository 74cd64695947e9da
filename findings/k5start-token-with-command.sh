#!/bin/bash
# k5start 4.3 (Debian 12's package kstart 4.3-1): -t runs AKLOG after each ticket, and with a command to run it first makes a PAG for that
# command. Where the kernel has no AFS module, the manual says that it goes on without a PAG. It does not: it ends with status 1 and "cannot create
# PAG: AFS support is not available", before it asks for a ticket. The same -t without a command, and the same command without -t, do
# ask the KDC. So a site whose AFS client is in user space cannot have `k5start -t ... -- job` in its crontabs.
#
# Run on Debian 12 without AFS's kernel module. Fails if any of the three behaves differently.
set -euo pipefail
version=4.3-1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download "kstart=$version" > /dev/null 2>&1 || { echo "kstart $version cannot be fetched here" >&2; exit 2; }
dpkg -x kstart_*.deb .
# A realm whose KDC is asked for in vain: how far k5start gets is what counts.
printf '[libdefaults]\ndefault_realm = EXAMPLE.TEST\ndns_lookup_kdc = false\n' > krb5.conf
: > keytab
export KRB5_CONFIG=$PWD/krb5.conf AKLOG=/bin/true

says() { # says TEXT ARGUMENT...: k5start ends with status 1 and this
    local text=$1 status=0 said
    shift
    said=$(usr/bin/k5start -q -f keytab "$@" 2>&1) || status=$?
    echo "k5start -q -f keytab $*: status $status: $said"
    [ "$status" = 1 ] && [[ $said == *"$text"* ]] || { echo "this is not what was seen before: $text" >&2; exit 1; }
}
says "Cannot find KDC" -t job
says "Cannot find KDC" job -- true
says "cannot create PAG: AFS support is not available" -t job -- true
