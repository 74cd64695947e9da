#!/bin/bash
# cell-down.sh NAME   end the servers that cell-up.sh NAME started and remove all it made. Without
# harm when there is no such cell, or half of one.
. "$(dirname "${BASH_SOURCE[0]}")"/common.sh
pid=$(init_pid)
if [ -n "$pid" ]; then
    # The kernel ends every process of the namespace with its first.
    kill -KILL "$pid" 2>/dev/null || true
    for _ in $(seq 100); do
        [ -e /proc/"$pid" ] || break
        sleep 0.05
    done
    [ ! -e /proc/"$pid" ] || die "process $pid does not end"
fi
# Of a cell-up.sh that was killed outright there may be processes without a note of their number.
# Only the servers ever run in this namespace.
[ ! -e /run/netns/"$SRV" ] || for pid in $(ip netns pids "$SRV"); do
    kill -KILL "$pid" 2>/dev/null || true
done
for ns in "$SRV" "$CLI"; do
    [ ! -e /run/netns/"$ns" ] || ip netns del "$ns"
done
rm -rf "$STATE"
