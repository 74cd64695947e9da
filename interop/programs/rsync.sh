#!/bin/bash
# rsync.sh MOUNTED LOCAL   rsync -a both ways: a second run finds nothing to do, changes are taken over, also with --inplace and by parts,
# and what comes back is what went.
. "$(dirname "${BASH_SOURCE[0]}")"/common.sh
# Who may not give files away cannot keep owners and groups; -a as root asks for that.
read -r -a flags <<< "${AFAR_RSYNC_FLAGS:--a}"
nothing_to_do() { [ -z "$(rsync "${flags[@]}" -i "$@")" ] || { rsync "${flags[@]}" -in "$@" | head; die "there is something to do: $*"; }; }

mkdir "$LOCAL/tree"
tree "$LOCAL/tree" 12 30
head -c 5000000 /dev/urandom > "$LOCAL/tree/d1/large"
# Of long ago: rsync takes a file that is changed within the second, to the same length, for unchanged.
touch -d "2001-02-03 04:05:06" "$LOCAL/tree/d1/e1/f3" "$LOCAL/tree/d1/large"
chmod 600 "$LOCAL/tree/d1/e1/f4"
rsync "${flags[@]}" "$LOCAL/tree" "$MOUNTED/"
same tree
nothing_to_do "$LOCAL/tree" "$MOUNTED/"
nothing_to_do -c "$LOCAL/tree" "$MOUNTED/"
# Changes: within a large file, deleted, renamed, turned into other kinds.
printf changed | dd of="$LOCAL/tree/d1/large" bs=1 seek=2500000 conv=notrunc status=none
rm "$LOCAL/tree/d2/e2/f3"
mv "$LOCAL/tree/d3/e3" "$LOCAL/tree/d3/e3-renamed"
rm "$LOCAL/tree/d4/e4/link"; mkdir "$LOCAL/tree/d4/e4/link"
rm -r "$LOCAL/tree/d5/e5"; ln -s nowhere "$LOCAL/tree/d5/e5"
rsync "${flags[@]}" --delete --inplace --no-whole-file "$LOCAL/tree" "$MOUNTED/"
same tree
nothing_to_do --delete "$LOCAL/tree" "$MOUNTED/"
# Back, and changed over there.
echo more >> "$MOUNTED/tree/d6/e6/f9"
touch -d "2011-02-03 04:05:06" "$MOUNTED/tree/d6/e6/f8"
rsync "${flags[@]}" --delete "$MOUNTED/tree" "$LOCAL/"
same tree
nothing_to_do --delete "$MOUNTED/tree" "$LOCAL/"
# Within the mount, with links for what has not changed.
rsync "${flags[@]}" "$MOUNTED/tree/" "$MOUNTED/copy/"
diff -r --no-dereference "$MOUNTED/tree" "$MOUNTED/copy"
