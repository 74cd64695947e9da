# Installing Debian packages without asking anything and without starting any service; sourced, not run.

say() { echo "$(basename "$0"): $*"; }
die() { say "$*" >&2; exit 1; }

# as_root COMMAND...: directly, or through sudo, which may ask for a password only where there is a terminal
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif [ -t 0 ]; then
        sudo "$@"
    else
        sudo -n "$@"
    fi
}

# can_install: whether packages can be installed here
can_install() {
    command -v apt-get > /dev/null && command -v dpkg-query > /dev/null || return 1
    [ "$(id -u)" = 0 ] && return
    command -v sudo > /dev/null && { [ -t 0 ] || sudo -n true 2> /dev/null; }
}

# is_installed PACKAGE
is_installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2> /dev/null)" = installed ]; }

refresh_lists() { as_root apt-get -qq update || say "apt-get update failed; going on with the lists there are" >&2; }

# install_packages PACKAGE...: without recommendations, questions, removals and started services
install_packages() {
    local status=0
    forbid_services
    as_root env DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true \
        apt-get -qq -y --no-install-recommends --no-remove -o Dpkg::Use-Pty=0 \
        -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold \
        install "$@" < /dev/null || status=$?
    allow_services
    return $status
}

POLICY=/usr/sbin/policy-rc.d
POLICY_ASIDE=$POLICY.before-afar

# forbid_services: packages' own scripts ask this program before they start a service; 101 says no.
forbid_services() {
    if [ -e "$POLICY" ]; then
        local answer=0
        "$POLICY" any start < /dev/null > /dev/null 2>&1 || answer=$?
        [ "$answer" = 101 ] && return
        as_root mv "$POLICY" "$POLICY_ASIDE"
    fi
    trap allow_services EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    as_root install -m 755 /dev/stdin "$POLICY" << 'POLICY_END'
#!/bin/sh
# afar is installing packages for its tests; removed when that is done.
exit 101
POLICY_END
}

allow_services() {
    if grep -qs 'afar is installing packages' "$POLICY"; then
        as_root rm -f "$POLICY"
    fi
    if [ -e "$POLICY_ASIDE" ]; then
        as_root mv "$POLICY_ASIDE" "$POLICY"
    fi
}
