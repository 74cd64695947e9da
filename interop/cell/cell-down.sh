#!/bin/bash
# cell-down.sh NAME   end the servers that cell-up.sh NAME started, and whatever else runs in the cell's namespaces, and
# remove all they made. Without harm when there is no such cell, or half of one.
. "$(dirname "${BASH_SOURCE[0]}")"/common.sh
for host in fs{3..9} srv; do
    set_host $host
    stop_host
done
if [ -e /run/netns/"$CLI" ]; then
    # Clients: they end before the folders that they may have mounted something from.
    for pid in $(ip netns pids "$CLI"); do
        kill -KILL "$pid" 2>/dev/null || true
    done
    ip netns del "$CLI"
fi
rm -rf "$STATE"
