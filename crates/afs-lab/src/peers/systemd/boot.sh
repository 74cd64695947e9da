# Becomes a systemd as PID 1: in namespaces, on a layer over this machine's own root. For `bash -c`, which leaves this text to the second stage:
#   boot GROUP PLACE [FROM TO]...   GROUP: a name for its cgroup; PLACE: an empty folder; FROM is a file that is to be at TO there
# Status 77: the reason why it cannot be here is the last line of stderr. Whoever waits for anything else waits for systemd.
set -eu
cannot() { echo "$1" >&2; exit 77; }

if [ "$1" != inside ]; then
    group=$1 place=$2
    # A branch of its own, so that its systemd has nothing to say about this machine's processes.
    mount -t tmpfs -o mode=755 layer "$place" || cannot "no tmpfs can be mounted"
    mkdir "$place"/{upper,work,root,cgroup}
    mount -t cgroup2 cgroup "$place/cgroup" || cannot "no cgroup2 can be mounted"
    mkdir "$place/cgroup/$group" && echo $$ > "$place/cgroup/$group/cgroup.procs" || cannot "no cgroup can be made"
    umount "$place/cgroup"
    shift
    exec setpriv --pdeathsig KILL unshare --mount --net --uts --ipc --pid --cgroup --fork --kill-child --propagation private \
        bash -c "$BASH_EXECUTION_STRING" boot inside "$@"
fi

place=$2
shift 2
mount -t overlay -o "lowerdir=/,upperdir=$place/upper,workdir=$place/work" layer "$place/root" \
    || cannot "no overlay can be mounted over /"
while [ $# -gt 0 ]; do
    mkdir -p "$place/root$(dirname "$2")"
    touch "$place/root$2"
    mount --bind "$1" "$place/root$2"
    shift 2
done
cd "$place/root"
mount -t proc proc proc
# What is set there holds for the whole machine.
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup sys/fs/cgroup
mount -t fusectl fusectl sys/fs/fuse/connections || cannot "no fusectl can be mounted"
mount -t tmpfs -o mode=755 dev dev
for name in null zero full random urandom tty fuse; do
    touch "dev/$name"
    mount --bind "/dev/$name" "dev/$name"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s null dev/console
mount -t tmpfs -o mode=1777 shm dev/shm
mount -t tmpfs -o mode=755 run run
mount -t tmpfs -o mode=1777 tmp tmp
# Nothing that this machine starts, or mounts, and nothing that looks for devices.
mount -t tmpfs -o mode=755 units etc/systemd/system
for unit in systemd-udevd.service systemd-udevd-kernel.socket systemd-udevd-control.socket systemd-udev-trigger.service systemd-udev-settle.service \
    systemd-modules-load.service systemd-remount-fs.service systemd-timesyncd.service systemd-journal-flush.service; do
    ln -s /dev/null "etc/systemd/system/$unit"
done
: > etc/fstab
rm -f etc/machine-id etc/hostname
echo 0123456789abcdef0123456789abcdef > etc/machine-id
echo afar-test > etc/hostname
ip link set lo up
mkdir -p mnt
pivot_root . mnt
umount -l mnt
exec env -i container=afar PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    /lib/systemd/systemd --system --unit=basic.target --show-status=no
