#!/bin/bash
# tar.sh MOUNTED LOCAL   tar out and in: what is packed from a mount is byte by byte what is packed from the local copy, with times, mode
# bits, symbolic links, and hard links within a directory.
. "$(dirname "${BASH_SOURCE[0]}")"/common.sh

mkdir "$LOCAL/tree" "$MOUNTED/tree"
tree "$LOCAL/tree" 12 30
ln "$LOCAL/tree/d1/e1/f3" "$LOCAL/tree/d1/e1/f3-too"
truncate -s 100000 "$LOCAL/tree/d2/e2/hole"
head -c 3000000 /dev/urandom > "$LOCAL/tree/d3/e3/large"
: > "$LOCAL/tree/d4/e4/empty"
mkdir "$LOCAL/tree/d5/empty"
chmod 600 "$LOCAL/tree/d0/e0/f5"
chmod 500 "$LOCAL/tree/d0/e0/f6"
find "$LOCAL/tree" -depth -exec touch -h -d "2001-02-03 04:05:06" {} +
pack() { tar -C "$1/tree" --sort=name --owner=0 --group=0 --numeric-owner --format=gnu -cf - .; }

pack "$LOCAL" > "$LOCAL/tree.tar"
tar -C "$MOUNTED/tree" --no-same-owner -xpf "$LOCAL/tree.tar"
same tree
pack "$MOUNTED" > "$LOCAL/back.tar"
cmp "$LOCAL/tree.tar" "$LOCAL/back.tar"
# An archive in the mount itself, compressed, listed, and compared with what it was made of.
pack "$MOUNTED" | gzip > "$MOUNTED/tree.tgz"
cmp <(tar -tzvf "$MOUNTED/tree.tgz") <(tar -tvf "$LOCAL/tree.tar")
tar -C "$LOCAL/tree" -df <(gunzip < "$MOUNTED/tree.tgz") | grep -v 'Uid differs\|Gid differs' && die "differs" || true
# Appended to and updated in place.
cp "$LOCAL/tree.tar" "$MOUNTED/grows.tar"
for place in "$LOCAL" "$MOUNTED"; do
    [ "$place" = "$MOUNTED" ] || cp "$LOCAL/tree.tar" "$LOCAL/grows.tar"
    (cd "$LOCAL/tree" && tar --owner=0 --group=0 -rf "$place/grows.tar" ./d1)
    tar --delete -f "$place/grows.tar" ./d2/e2/f3
done
cmp "$LOCAL/grows.tar" "$MOUNTED/grows.tar"
