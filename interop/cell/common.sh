# Shared by the cell scripts; sourced, not run. NAME is the cell's, checked here.
set -eu
# With few processes of its own: tests run these scripts, and what they wait with, all the time.
HERE=${BASH_SOURCE[0]%/*}
[[ $HERE == /* ]] || HERE=$PWD/$HERE
die() { echo "$(basename "$0"): $*" >&2; exit 1; }
NAME=${1:-}
[[ $NAME =~ ^[a-z][a-z0-9-]{0,29}$ ]] || die "the first argument is a name for the cell: [a-z][a-z0-9-]*, 30 characters at most"
[ "$EUID" = 0 ] || die "must be root"
STATE=/run/afar-cell-$NAME      # everything the cell keeps; a folder a machine below it
CLI=$NAME-cli                   # network namespace with the network itself, and to reach the servers from
NETWORK=10.88.0 CLI_ADDR=10.88.0.2
CELL=interop.test
LIBEXEC=/usr/lib/openafs

# A machine of the cell is srv, which has all servers unless it is told otherwise, or one of fs3 to fs9, file servers. Its
# name is also the end of its namespace's.
set_host() {
    HOST=$1
    case $HOST in
        srv) ADDRESS=$NETWORK.1 ;;
        fs[3-9]) ADDRESS=$NETWORK.${HOST#fs} ;;
        *) die "no machine of a cell is called \"$HOST\": srv, fs3 to fs9" ;;
    esac
    NS=$NAME-$HOST AT=$STATE/$HOST
}

# The servers of a machine run under one process of ours, which is number 1 of a pid namespace. Its number
# out here, or nothing. The file may be stale: believe it only for a process in the machine's network. (Its
# command line would not tell: it is empty for a moment whenever a process executes another program.)
init_pid() {
    local pid
    { read -r pid < "$AT"/init.pid; } 2>/dev/null || return 0
    [ ! /proc/"$pid"/ns/net -ef /run/netns/"$NS" ] || echo "$pid"
}

# The beginning of a command that runs in a machine, before the number of its first process. Clients of other cells may be
# mounted on this machine: their tokens are none of this one's.
IN_MACHINE=(env AFAR_SOCKET= nsenter --mount --uts --net --pid --root --wd --target)

# start_host: makes the machine that set_host named, and starts its servers. WITH is "stock", "none" or the path of afar,
# ROLES "all", "file" or "databases".
start_host() {
    mkdir -m 755 "$AT"
    ip netns add "$NS"
    ip -n "$NS" link add cell0 type veth peer name "$HOST" netns "$CLI"
    ip -n "$NS" addr add "$ADDRESS"/24 dev cell0
    ip -n "$NS" link set lo up
    ip -n "$NS" link set cell0 up
    ip -n "$CLI" link set "$HOST" master cell0 up

    # Mounts, processes and the host name of their own: nothing of this machine's OpenAFS
    # configuration is read or written, and the end of the first process is that of all.
    setsid nsenter --net=/run/netns/"$NS" unshare --mount --propagation private --uts --pid --fork --kill-child \
        --mount-proc "$HERE"/inside.sh "$NAME" "$HOST" "$ADDRESS" "$WITH" "$ROLES" < /dev/null > "$AT"/inside.out 2>&1 &
    local outer=$! inner=
    for _ in $(seq 600); do
        # nsenter and unshare run in place, one after the other; the child is process 1
        inner=$(cat /proc/$outer/task/$outer/children 2>/dev/null || true)
        [ -z "${inner// /}" ] || break
        kill -0 $outer 2>/dev/null || die "cannot start the servers"
        sleep 0.05
    done
    echo ${inner:?} > "$AT"/init.pid
}

# serves PID: whether the databases answer, asked in the machine whose first process this is, and know this file server, and
# its volume server answers too; whether a machine of other roles has started what it has
serves() {
    if [ "$WITH" = none ]; then
        [ -e "$AT"/idle ]
        return
    elif [ "$ROLES" = databases ]; then
        [ "$("${IN_MACHINE[@]}" "$1" bos status "$ADDRESS" -localauth 2>/dev/null | grep -c "running normally")" = 2 ]
        return
    fi
    "${IN_MACHINE[@]}" "$1" vos listaddrs -noresolve -localauth 2>/dev/null | grep -qx "$ADDRESS" \
        && "${IN_MACHINE[@]}" "$1" vos partinfo "$ADDRESS" a -localauth 2>/dev/null | grep -q /vicepa
}

# wait_for_host: until all its servers answer
wait_for_host() {
    local first
    for _ in {1..1000}; do
        # Those of `srv` know every server.
        first=$(AT=$STATE/srv NS=$NAME-srv init_pid)
        [ -n "$first" ] && [ -n "$(init_pid)" ] || die "the servers ended"
        serves "$first" && return
        sleep 0.2
    done
    die "the servers do not answer"
}

show_logs() { tail -n 20 "$AT"/inside.out "$AT"/log/* >&2 2>/dev/null || true; }

# stop_host: ends the servers of the machine that set_host named, and removes its namespace
stop_host() {
    local pid
    pid=$(init_pid)
    if [ -n "$pid" ]; then
        # The kernel ends every process of the namespace with its first.
        kill -KILL "$pid" 2>/dev/null || true
        for _ in $(seq 200); do
            [ -e /proc/"$pid" ] || break
            sleep 0.05
        done
        [ ! -e /proc/"$pid" ] || die "process $pid does not end"
    fi
    # Of a start that was killed outright there may be processes without a note of their number.
    # Only the cell's own ever run in this namespace.
    if [ -e /run/netns/"$NS" ]; then
        for pid in $(ip netns pids "$NS"); do
            kill -KILL "$pid" 2>/dev/null || true
        done
        ip netns del "$NS"
    fi
}
