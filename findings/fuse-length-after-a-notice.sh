#!/bin/bash
# Linux FUSE (seen with 6.18; no library in between): if a server sends FUSE_NOTIFY_INVAL_INODE for a file while a GETATTR of it is under
# way, and then answers the GETATTR with a new length, the program's fstat returns the new length, but the kernel does not keep it: the
# inode stays as long as it was. A sendfile of the same descriptor right after that fstat ends at the old length. So a server that tells the
# kernel of a change by a notice must not do it between a request and its answer, or tell the length once more.
#
# Needs root, /dev/fuse and Debian's python3. Runs in a mount namespace of its own. Fails if sendfile brings the new length.
set -euo pipefail
[ "$(id -u)" = 0 ] && [ -c /dev/fuse ] || { echo "needs root and /dev/fuse" >&2; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/trial.py" << 'END'
import ctypes, os, struct, sys, threading

OLD, NEW = b"old bytes", b"new bytes, longer!"
content, notices = OLD, 0  # notices: how many GETATTRs have one sent before their answer
mount = sys.argv[1]
dev = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={dev},rootmode=40000,user_id=0,group_id=0".encode()
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"trial", mount.encode(), b"fuse", 0, options):
    sys.exit(os.strerror(ctypes.get_errno()))

def attr(node):
    size, mode = (0, 0o040755) if node == 1 else (len(content), 0o100644)
    return struct.pack("<6Q10I", node, size, 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

def answer(unique, body=b"", error=0):
    os.write(dev, struct.pack("<IiQ", 16 + len(body), error, unique) + body)

def serve():
    global notices
    while True:
        try:
            request = os.read(dev, 1 << 20)
        except OSError:
            return
        _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
        body = request[40:]
        if opcode == 26:  # INIT
            answer(unique, struct.pack("<4I2H2I2H8I", 7, 31, 0, 0, 12, 10, 4096, 1, 1, 0, *[0] * 8))
        elif opcode == 1:  # LOOKUP: names and attributes may be kept for a second
            answer(unique, struct.pack("<4Q2I", 2, 0, 1, 1, 0, 0) + attr(2)) if body == b"file\0" else answer(unique, error=-2)
        elif opcode == 3:  # GETATTR: to be asked for each time
            if node == 2 and notices:
                notices -= 1
                os.write(dev, struct.pack("<IiQQqq", 40, 2, 0, 2, 0, 0))  # NOTIFY_INVAL_INODE, all data
            answer(unique, struct.pack("<Q2I", 0, 0, 0) + attr(node))
        elif opcode == 14:  # OPEN
            answer(unique, struct.pack("<Q2I", 1, 0, 0))
        elif opcode == 15:  # READ
            _, offset, size = struct.unpack_from("<QQI", body)
            answer(unique, content[offset:offset + size])
        elif opcode in (18, 25):  # RELEASE, FLUSH
            answer(unique)
        elif opcode not in (2, 36, 42):  # FORGET, INTERRUPT, BATCH_FORGET have no answer
            answer(unique, error=-38)

threading.Thread(target=serve, daemon=True).start()
file = os.open(mount + "/file", os.O_RDONLY)
assert os.pread(file, 100, 0) == OLD

def look(notice):
    global notices
    notices = notice
    length = os.fstat(file).st_size
    out = os.memfd_create("out")
    sent = os.sendfile(out, file, 0, 100)
    print(f"{'a notice before the answer' if notice else 'no notice'}: fstat {length}, then sendfile {sent}", flush=True)
    return length, sent

content = NEW
with_notice, without = look(1), look(0)
os.close(file)
libc.umount2(mount.encode(), 2)
os._exit(0 if (with_notice, without) == ((18, 9), (18, 18)) else 1)
END
mkdir "$folder/mount"
timeout 60 unshare --mount python3 "$folder/trial.py" "$folder/mount" || { echo "this is not what was seen before" >&2; exit 1; }
