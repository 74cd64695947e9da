#!/bin/bash
# large.sh MOUNTED LOCAL [BYTES]   a large file (a GiB, or AFAR_LARGE_BYTES; 10737418240 for ten): written, read back whole and at places across the 2, 4 and 8 GiB,
# written in its midst and behind its end, cut off. Nothing of its size is kept in the local folder: what is right is known byte by byte.
. "$(dirname "${BASH_SOURCE[0]}")"/common.sh
bytes=${1:-${AFAR_LARGE_BYTES:-1073741824}}
gcc -O2 -Wall -o "$LOCAL/pattern" "$HERE/pattern.c"
pattern=$LOCAL/pattern file=$MOUNTED/large
now() { date +%s.%N; }
took() { awk -v a="$1" -v b="$(now)" -v n="$bytes" -v w="$2" 'BEGIN { printf "%s: %.1f s, %.0f MB/s\n", w, b - a, n / (b - a) / 1e6 }'; }
length_is() { [ "$(stat -c %s "$file")" = "$1" ] || die "it is $(stat -c %s "$file") bytes, not $1"; }
# range FROM BYTES: what is there is the pattern
range() { cmp <(dd if="$file" bs=1M iflag=skip_bytes,count_bytes skip="$1" count="$2" status=none) <("$pattern" "$2" "$1") || die "at $1"; }

at=$(now)
"$pattern" "$bytes" > "$file"
took "$at" written
length_is "$bytes"
at=$(now)
"$pattern" "$bytes" | cmp - "$file" || die "it is not what was written"
took "$at" "read back"
for ((from = 0; from < bytes; from += bytes / 8 / 8 * 8)); do range "$from" 65536; done
for gib in 2 4 8; do
    border=$((gib << 30))
    [ "$border" -ge "$bytes" ] || range $((border - 32768)) 65536
done
# In its midst, which is put right again; and behind the end, with a hole.
middle=$((bytes / 16 * 8 + 4096))
head -c 100000 /dev/zero | dd of="$file" bs=100000 oflag=seek_bytes seek=$middle conv=notrunc status=none
cmp <(dd if="$file" bs=100000 iflag=skip_bytes skip=$middle count=1 status=none) <(head -c 100000 /dev/zero) || die "in its midst"
range $((middle - 65536)) 65536
range $(((middle + 100000) / 8 * 8)) 65536
"$pattern" 100000 $middle | dd of="$file" bs=100000 oflag=seek_bytes seek=$middle conv=notrunc status=none iflag=fullblock
range $((middle - 65536)) 262144
printf end | dd of="$file" bs=3 oflag=seek_bytes seek=$((bytes + 1000000)) conv=notrunc status=none
length_is $((bytes + 1000003))
cmp <(tail -c 1000003 "$file") <(head -c 1000000 /dev/zero; printf end) || die "behind its end"
truncate -s $((bytes - 5)) "$file"
length_is $((bytes - 5))
range $(((bytes - 65536) / 8 * 8)) 65528
truncate -s "$bytes" "$file"
cmp <(tail -c 5 "$file") <(head -c 5 /dev/zero) || die "what is cut off is zero when it comes back"
