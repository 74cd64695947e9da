#!/bin/bash
# mapped.sh MOUNTED LOCAL   writers and readers through mappings (mapped.c), of a file of a few pages and of one that is large enough for
# the kernel to read it by itself; and programs that are run from the mount while they are replaced.
. "$(dirname "${BASH_SOURCE[0]}")"/common.sh
gcc -O1 -Wall -o "$LOCAL/mapped" "$HERE/mapped.c"
program=$LOCAL/mapped

work() {
    "$program" small 3 5000 20
    "$program" large 4 700001 6
    # Again, with a file that is there: its old contents are gone.
    "$program" small 2 3001 5
    cksum small large
}
both work
# A program in the mount is a mapping too.
cp "$program" "$MOUNTED/mapped"
(cd "$MOUNTED" && ./mapped other 2 3001 5)
cmp "$MOUNTED/other" "$LOCAL/small"
for _ in 1 2 3; do
    (cd "$MOUNTED" && ./mapped busy 2 300000 8) &
    cp "$program" "$MOUNTED/new"
    mv -f "$MOUNTED/new" "$MOUNTED/mapped"
    wait $!
done
cmp "$program" "$MOUNTED/mapped"
