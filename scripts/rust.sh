#!/bin/bash
# rust.sh [COMMAND...]   run COMMAND with a cargo and rustc that are new enough; without one, say which they are.
#
# Looks on PATH, then in ~/.cargo/bin. Where neither is as new as Cargo.toml's rust-version, installs Debian's
# rustc-web and cargo-web (with rustfmt and clippy), as root or through sudo; nothing is ever removed for that.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/debian.sh

wanted=$(sed -n 's/^rust-version = "\([0-9.]*\)"$/\1/p' Cargo.toml)
[ -n "$wanted" ] || die "Cargo.toml of the workspace states no rust-version"

# at_least VERSION: whether VERSION is at least the wanted one
at_least() { [ "$(printf '%s\n%s\n' "$wanted" "$1" | sort -V | head -n 1)" = "$wanted" ]; }

# version_of PROGRAM: its version number, or nothing if it is not there or does not run
version_of() { { "$1" --version 2> /dev/null || true; } | awk 'NR == 1 { sub(/-.*/, "", $2); print $2 }'; }

# new_enough: whether both cargo and rustc on PATH are
new_enough() {
    local program version
    for program in cargo rustc; do
        version=$(version_of "$program")
        [ -n "$version" ] && at_least "$version" || return 1
    done
}

# find_rust: sets PATH so that new_enough is true, or fails
find_rust() {
    new_enough && return
    local found=$PATH
    PATH=$HOME/.cargo/bin:$found
    new_enough && return
    # Debian's, where an older one stands before it
    PATH=/usr/bin:$found
    new_enough && return
    PATH=$found
    return 1
}

install_rust() {
    local have candidate advice
    have=$(version_of rustc)
    advice="Install Rust $wanted or newer (on Debian 12: apt-get install rustc-web cargo-web rustfmt-web rust-web-clippy, from its security updates; elsewhere: rustup) and try again."
    can_install || die "the rustc here is ${have:-missing}. $advice"
    say "the rustc here is ${have:-missing}, $wanted is needed: installing Debian's rustc-web and cargo-web"
    refresh_lists
    candidate=$(LC_ALL=C apt-cache policy rustc-web | awk '$1 == "Candidate:" { sub(/[+-].*/, "", $2); print $2 }')
    case $candidate in
        '' | '(none)') die "there is no rustc-web among this system's packages. $advice" ;;
    esac
    at_least "$candidate" || die "this system's rustc-web is $candidate, older than $wanted. $advice"
    install_packages ca-certificates rustc-web cargo-web rustfmt-web rust-web-clippy \
        || die "rustc-web and cargo-web could not be installed (an older rustc or cargo, or rustup, that was installed as a package has to be removed first). $advice"
}

find_rust || { install_rust >&2; hash -r; find_rust; } \
    || die "rustc is $(version_of rustc) and cargo $(version_of cargo) even now, $wanted is needed: put a newer one first on PATH"
export PATH
if [ $# = 0 ]; then
    echo "$(command -v rustc) $(version_of rustc), $(command -v cargo) $(version_of cargo)"
else
    exec "$@"
fi
