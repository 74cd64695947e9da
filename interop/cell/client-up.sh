#!/bin/bash
# client-up.sh NAME CLIENT [FLAGS...]   mount the cell with Debian's afsd.fuse, in the cell's client namespace, and in a mount
# namespace of its own, which nobody else sees and which goes with the process. Prints "ready FOLDER": the
# cell's root volume as others reach it, through /proc. CLIENT tells one client of a cell from another. The cache
# begins empty.
. "$(dirname "${BASH_SOURCE[0]}")"/common.sh
CLIENT=${2:-}
[[ $CLIENT =~ ^[a-z][a-z0-9-]{0,29}$ ]] || die "the second argument is a name for the client: [a-z][a-z0-9-]*"
shift 2
command -v afsd.fuse > /dev/null || die "afsd.fuse is missing: install openafs-fuse"
[ -e /dev/fuse ] || die "there is no /dev/fuse"
[ -d "$STATE"/srv/etc ] || die "no cell \"$NAME\" is up"
AT=$STATE/client-$CLIENT
[ ! -e "$AT" ] || die "a client \"$CLIENT\" is up already"
mkdir -p "$AT"/{conf,cache,mnt}
# afsd.fuse reads its cell from here, and its mount point from cacheinfo.
cp "$STATE"/srv/etc/{ThisCell,CellServDB} "$AT"/conf/
echo "$AT/mnt:$AT/cache:1000000" > "$AT"/conf/cacheinfo
# As if no one else had a configuration: nsenter, unshare and env run in place, so that this is afsd.fuse's number.
setsid nsenter --net=/run/netns/"$CLI" unshare --mount --propagation private -- \
    afsd.fuse -f -confdir "$AT"/conf -cachedir "$AT"/cache -mountdir "$AT"/mnt -blocks 1000000 \
    -chunksize 20 -daemons 6 -stat 20000 "$@" < /dev/null > "$AT"/log 2>&1 &
pid=$!
echo $pid > "$AT"/pid
for _ in $(seq 600); do
    if grep -q " $AT/mnt fuse" /proc/$pid/mounts 2>/dev/null; then
        echo "ready /proc/$pid/root$AT/mnt"
        exit 0
    fi
    kill -0 $pid 2>/dev/null || break
    sleep 0.1
done
tail -n 20 "$AT"/log >&2
"$HERE"/client-down.sh "$NAME" "$CLIENT" || true
die "afsd.fuse does not mount"
