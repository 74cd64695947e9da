# Shared by the cell scripts; sourced, not run. NAME is the cell's, checked here.
set -eu
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
die() { echo "$(basename "$0"): $*" >&2; exit 1; }
NAME=${1:-}
[[ $NAME =~ ^[a-z][a-z0-9-]{0,29}$ ]] || die "the first argument is a name for the cell: [a-z][a-z0-9-]*, 30 characters at most"
[ "$(id -u)" = 0 ] || die "must be root"
STATE=/run/afar-cell-$NAME      # everything the cell keeps: configuration, databases, logs
SRV=$NAME-srv CLI=$NAME-cli     # network namespaces: the servers', and one to reach them from
SRV_ADDR=10.88.0.1 CLI_ADDR=10.88.0.2
CELL=interop.test

# The servers run under one process of ours, which is number 1 of a pid namespace. Its number
# out here, or nothing. The file may be stale: believe it only for a process of that state.
init_pid() {
    local pid
    pid=$(cat "$STATE"/init.pid 2>/dev/null) || return 0
    tr '\0' ' ' < /proc/"$pid"/cmdline 2>/dev/null | grep -q -- "inside.sh $NAME " && echo "$pid"
    return 0
}
