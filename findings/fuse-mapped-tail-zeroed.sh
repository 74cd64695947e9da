#!/bin/bash
# Linux FUSE (seen with 6.18, by bindfs 1.14.7 and by a server of our own): a program changes the last page of a file by a shared mapping, and
# then makes the file longer by pwrite. If the kernel writes the changed page back meanwhile, as it may at any time and sync_file_range asks it
# to, the bytes that pwrite has put behind the old end in that page become zeros in the page cache: the next pread returns zeros,
# although the server of the file system was sent the right bytes. With one thread that does nothing but map, write and read, and one that
# calls sync_file_range, it is one file in 5 to 1,000. ext4 and tmpfs show none.
#
# Needs root, /dev/fuse, Debian's python3, and the network for apt. Runs in a mount namespace of its own. Fails if no byte is lost.
set -euo pipefail
[ "$(id -u)" = 0 ] && [ -c /dev/fuse ] || { echo "needs root and /dev/fuse" >&2; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir packages source mount
chmod 755 . && (cd packages && apt-get -qq download bindfs=1.14.7-1 libfuse2=2.9.9-6+b1 2> /dev/null)
for package in packages/*.deb; do dpkg-deb -x "$package" tree; done
cat > trial.py << 'END'
import ctypes, mmap, os, sys, threading

OLD, FROM, LENGTH = 10911, 6042, 5058  # the old end is in the third page, and so is the new one
libc = ctypes.CDLL(None)
current, is_over = None, False

def write_back():
    while not is_over:
        if (file := current) is not None:
            libc.sync_file_range(file, ctypes.c_int64(0), ctypes.c_int64(0), 2)

def lost(folder, files):
    global current
    count = 0
    for _ in range(files):
        current = file = os.open(folder + "/file", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.pwrite(file, b"a" * OLD, 0)
        with mmap.mmap(file, OLD) as mapping:
            mapping[8192:9000] = b"m" * 808
            os.pwrite(file, b"w" * LENGTH, FROM)
            read = os.pread(file, 20000, FROM)
        if read != b"w" * LENGTH:
            assert read == b"w" * (OLD - FROM) + bytes(FROM + LENGTH - OLD), read
            count += 1
        current = None
        os.close(file)
    return count

thread = threading.Thread(target=write_back)
thread.start()
try:
    here, through_fuse = (lost(folder, 3000) for folder in sys.argv[1:])
finally:
    is_over = True
    thread.join()
print(f"{os.uname().release}: read zeros: {through_fuse} of 3000 files through bindfs, {here} of 3000 without it")
sys.exit(not (through_fuse > 0 and here == 0))
END
export LD_LIBRARY_PATH=$folder/tree/lib/x86_64-linux-gnu:$folder/tree/usr/lib/x86_64-linux-gnu
unshare --mount bash -c 'tree/usr/bin/bindfs source mount && LD_LIBRARY_PATH= python3 trial.py source mount; status=$?; umount mount; exit $status'
