#!/bin/bash
# client-down.sh NAME CLIENT   unmount what client-up.sh mounted, and forget its cache. Orderly, so that the servers
# do not wait for it later; by force if it does not go. Without harm when there is no such client.
. "$(dirname "${BASH_SOURCE[0]}")"/common.sh
AT=$STATE/client-${2:?the name of the client}
pid=$(cat "$AT"/pid 2>/dev/null || true)
if [ -n "$pid" ] && [ "$(cat /proc/"$pid"/comm 2>/dev/null)" = afsd.fuse ]; then
    nsenter --target "$pid" --mount -- umount "$AT"/mnt 2>/dev/null || nsenter --target "$pid" --mount -- umount -l "$AT"/mnt || true
    for _ in $(seq 100); do
        [ -e /proc/"$pid" ] || break
        sleep 0.05
    done
    kill -KILL "$pid" 2>/dev/null || true
fi
rm -rf "$AT"
