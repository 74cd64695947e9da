#!/bin/bash
# fresh-debian.sh [FOLDER]   follow the README in a fresh Debian 12 that has make and gcc, and nothing else.
#
# Takes the last commit of this repository, a new Debian in FOLDER (a temporary one by default; needs root, debootstrap and 8 GB) and the
# commands of the README's "Try it", as they are written there. Says how long they took. Debian's packages come from where this
# machine's do. The processes, the mounts and the new Debian's folder go with the script.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/debian.sh

[ "$(id -u)" = 0 ] || die "only root can make a new Debian"
if [ "${1-}" != inside ]; then
    scripts/packages.sh debootstrap
    folder=$(mktemp -d "${1:-${TMPDIR:-/tmp}}/fresh-debian.XXXXXX")
    trap 'rm -rf --one-file-system "$folder"' EXIT
    # All that is started and mounted inside ends with the first process.
    unshare --mount --pid --fork --kill-child --mount-proc "$PWD/scripts/fresh-debian.sh" inside "$folder"
    exit
fi

folder=$2
root=$folder/root
sites=$(apt-get indextargets --format '$(SITE) $(RELEASE)' 'Created-By: Packages' | grep ' bookworm' | sort -u)
mirror=$(awk '$2 == "bookworm" { print $1 }' <<< "$sites")
[ -n "$mirror" ] || die "this machine's packages are not Debian 12's"
# What Debian's installer gives with make and gcc: what they recommend too.
debootstrap --variant=minbase --include=ca-certificates,gcc,git,libc6-dev,make bookworm "$root" "$mirror" > "$folder/debootstrap.log" \
    || { tail "$folder/debootstrap.log" >&2; die "debootstrap failed"; }
awk '{ print "deb", $1, $2, "main" }' <<< "$sites" > "$root/etc/apt/sources.list"
cp /etc/resolv.conf "$root/etc/resolv.conf"
# Behind a proxy that looks into what is fetched, the machine trusts its certificate.
cp -r /usr/local/share/ca-certificates "$root/usr/local/share/"
mkdir "$root/srv/afar"
git archive HEAD | tar -x -C "$root/srv/afar"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
chroot "$root" update-ca-certificates > /dev/null 2>&1
inside() { chroot "$root" env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin bash -euc "cd /srv/afar; $1"; }

# The README's commands: its indented lines from "Try it" to the next heading, but for what a command prints.
commands=$(sed -n '/^## Try it/,/^## [^T]/ s/^    //p' README.md | grep -v '^ready ')
first=$(head -n 1 <<< "$commands")
[[ $first == "make up"* ]] || die "the README does not begin with make up: $first"
began=$SECONDS
say "$first"
inside "$first" > "$folder/up.log" 2>&1 &
until grep -q '^ready ' "$folder/up.log"; do
    kill -0 $! 2> /dev/null || { tail -n 30 "$folder/up.log" >&2; die "make up ended"; }
    sleep 1
done
say "ready after $((SECONDS - began)) s, Debian's Rust among it: $(grep '^ready ' "$folder/up.log")"
said=$(sed -n 's/^    \(ready .*\)/\1/p' README.md)
grep -qxF "$said" "$folder/up.log" || die "the README says: $said"
echo "$commands" | tail -n +2
inside "$(tail -n +2 <<< "$commands")"
# What was copied is there, and the new volume is mounted.
inside 'diff -r docs /afs/afar.local/scratch/docs && ls -d /afs/afar.local/projects'
say "the README's commands work, $((SECONDS - began)) s in all"
