#!/bin/bash
# fsx.sh MOUNTED LOCAL [SEED]   fsx, which does random things to a file and knows what must come of them: 20,000 operations, or
# AFAR_FSX_OPERATIONS, from seed 1, or AFAR_SEED. Most are on a file of 256 KiB, as its authors have it, and some on one that is large
# enough for the kernel to read it by itself. Its program is FSX, as scripts/tools.sh builds it.
. "$(dirname "${BASH_SOURCE[0]}")"/common.sh
FSX=${FSX:-$HERE/../../target/tools/bin/fsx}
[ -x "$FSX" ] || die "there is no $FSX: scripts/tools.sh builds it"
seed=${1:-${AFAR_SEED:-1}}
echo "seed $seed"

# fsx OPERATIONS LENGTH LONGEST
fsx() {
    cat > "$LOCAL/fsx.toml" << EOF
flen = $2
[opsize]
max = $3
[weights]
close_open = 1.0
invalidate = 1.0
mapread = 5.0
mapwrite = 5.0
read = 10.0
write = 10.0
truncate = 5.0
fsync = 0.5
fdatasync = 0.5
posix_fallocate = 0.5
punch_hole = 1.0
sendfile = 1.0
posix_fadvise = 1.0
copy_file_range = 1.0
EOF
    "$FSX" -N "$1" -S "$seed" -f "$LOCAL/fsx.toml" -P "$LOCAL" "$MOUNTED/file" > "$LOCAL/out" 2>&1 || { tail -n 60 "$LOCAL/out"; die "seed $seed, $*"; }
    rm "$MOUNTED/file"
}
fsx $((${AFAR_FSX_OPERATIONS:-20000} * 9 / 10)) 262144 65536
fsx $((${AFAR_FSX_OPERATIONS:-20000} / 10)) 3000000 100000
