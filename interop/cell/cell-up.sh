#!/bin/bash
# cell-up.sh NAME   start the servers of a stock OpenAFS cell, one of each: bosserver, vlserver, ptserver,
# dafileserver, davolserver. Prints "ready ADDRESS" when they answer. See README.md.
. "$(dirname "${BASH_SOURCE[0]}")"/common.sh
for program in bosserver asetkey rxdebug vos unshare nsenter ip setsid \
    /usr/lib/openafs/{vlserver,ptserver,dafileserver,davolserver,salvageserver,dasalvager}; do
    command -v "$program" > /dev/null \
        || die "$program is missing: install openafs-fileserver openafs-dbserver openafs-krb5 openafs-client iproute2 util-linux"
done
[ ! -e "$STATE" ] && [ ! -e /run/netns/"$SRV" ] && [ ! -e /run/netns/"$CLI" ] \
    || die "a cell \"$NAME\" is up already, or was not taken down: cell-down.sh $NAME"

failed() {
    tail -n 20 "$STATE"/inside.out "$STATE"/log/* >&2 2>/dev/null || true
    "$HERE"/cell-down.sh "$NAME" >&2 || true
}
trap failed EXIT
trap 'exit 1' INT TERM HUP

mkdir -m 755 "$STATE"
ip netns add "$SRV"
ip netns add "$CLI"
ip -n "$SRV" link add cell0 type veth peer name cell0 netns "$CLI"
ip -n "$SRV" addr add $SRV_ADDR/24 dev cell0
ip -n "$CLI" addr add $CLI_ADDR/24 dev cell0
for ns in "$SRV" "$CLI"; do
    ip -n "$ns" link set lo up
    ip -n "$ns" link set cell0 up
done

# Mounts, processes and the host name of their own: nothing of this machine's OpenAFS
# configuration is read or written, and the end of the first process is that of all.
setsid nsenter --net=/run/netns/"$SRV" unshare --mount --propagation private --uts --pid --fork --kill-child \
    --mount-proc "$HERE"/inside.sh "$NAME" $SRV_ADDR $CELL < /dev/null > "$STATE"/inside.out 2>&1 &
outer=$!
inner=
for _ in $(seq 100); do
    # nsenter and unshare run in place, one after the other; the child is process 1
    inner=$(cat /proc/$outer/task/$outer/children 2>/dev/null || true)
    [ -z "${inner// /}" ] || break
    kill -0 $outer 2>/dev/null || die "cannot start the servers"
    sleep 0.05
done
echo ${inner:?} > "$STATE"/init.pid

# Up means: the databases answer, and the fileserver is known to the one of volumes.
for _ in $(seq 300); do
    [ -n "$(init_pid)" ] || die "the servers ended"
    addresses=$("$HERE"/cell-run.sh "$NAME" vos listaddrs -noresolve -localauth 2>/dev/null || true)
    if [ "$addresses" = $SRV_ADDR ]; then
        trap - EXIT
        echo "ready $SRV_ADDR"
        exit 0
    fi
    sleep 0.2
done
die "the servers do not answer"
