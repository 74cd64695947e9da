#!/bin/bash
# kernels.sh             fetch Debian's kernels for the tests of kAFS, and make of each a machine that qemu starts: target/tools/kernels/VERSION has
#                        "vmlinuz" and "initrd", with the modules that kAFS needs, busybox, and interop/kernels/init
# kernels.sh --openafs   the same of the first one with OpenAFS's module in place of kAFS, which Debian's package builds (dkms), and its
#                        afsd: target/tools/kernels/VERSION-openafs. Some minutes, and 400 MB of packages
# kernels.sh --rxgk      a user-mode Linux of the package linux-source-7.2, whose kAFS has rxgk, which Debian's own kernels leave out:
#                        target/tools/kernels/rxgk. The package is of Debian's unstable release, from the machine's own mirror. A quarter of an hour
#                        of processor time, and 2 GB of disk meanwhile
#
# But for these, nothing is installed and nothing compiled. Where it is not possible it says so, and succeeds: the tests skip themselves.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
kernels=$PWD/target/tools/kernels

# Of these, whichever the release has.
packages=(linux-image-amd64 linux-image-6.12-amd64)
modules=(virtio_pci virtio_net)
kafs=(fcrypt pcbc kafs)

for program in apt-get apt-cache dpkg busybox depmod modprobe xz keyctl; do
    if ! command -v "$program" > /dev/null; then
        echo "kernels.sh: there is no $program; tests with stock kernels are skipped" >&2
        exit 0
    fi
done

# put ROOT PROGRAM...: copies programs and the libraries that they load
put() {
    local root=$1 program library
    shift
    for program in "$@"; do
        cp -L "$program" "$root"/bin/
        for library in $(ldd "$program" 2> /dev/null | grep -o '/[^ ]*'); do
            mkdir -p "$root$(dirname "$library")"
            cp -L "$library" "$root$library"
        done
    done
}

# make_machine PACKAGE FOLDER [OPENAFS]: of a kernel's package; with OpenAFS's module from this file, or with kAFS
make_machine() (
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cd "$work"
    apt-get -o APT::Sandbox::User=root download --quiet=2 "$1"
    dpkg --extract "$1"_*.deb package
    release=${1#linux-image-}
    depmod -b package "$release"
    mkdir -p root/bin root/lib/modules/"$release"/kernel
    [ $# = 3 ] || modules+=("${kafs[@]}")
    for module in "${modules[@]}"; do
        modprobe -d package -S "$release" --show-depends "$module" | awk '$1 == "insmod" { print $2 }'
    done | sort -u | while read -r file; do
        cp "$file" root/lib/modules/"$release"/kernel/
    done
    find root -name '*.xz' -exec xz -d {} +
    cp package/lib/modules/"$release"/modules.{order,builtin,builtin.modinfo} root/lib/modules/"$release"/
    depmod -b root "$release"
    put root "$(command -v busybox)" "$(command -v keyctl)" /sbin/request-key
    if [ $# = 3 ]; then
        put root /sbin/afsd /usr/bin/fs
        cp "$3" root/lib/
    fi
    mkdir root/sbin && ln -s ../bin/request-key ../bin/busybox root/sbin/ && ln -s ../bin/busybox root/sbin/modprobe
    mkdir -p "$2"
    (cd root && find . | busybox cpio -o -H newc 2> /dev/null | gzip) > "$2"/initrd.new
    cp package/boot/vmlinuz-"$release" "$2"/vmlinuz
    mv "$2"/initrd.new "$2"/initrd
)

# image META: the package of the kernel that a package stands for
image() {
    apt-cache depends "$1" 2> /dev/null | awk '$1 == "Depends:" { print $2; exit }'
}

# version PACKAGE: that of its kernel, as 6.12
version() {
    grep -o '^[0-9]*\.[0-9]*' <<< "${1#linux-image-}" || true
}

# fetch_unstable PACKAGE: of Debian's unstable release, where this machine has its packages from
fetch_unstable() {
    local release mirror
    release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' "Codename: $release" 'Component: main' | head -n 1)
    mkdir -p lists/partial cache/archives/partial
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" > sources
    local apt=(apt-get -o APT::Sandbox::User=root -o Dir::State::lists="$PWD"/lists -o Dir::Cache="$PWD"/cache
        -o Dir::Etc::sourcelist="$PWD"/sources -o Dir::Etc::sourceparts=/dev/null --quiet=2)
    "${apt[@]}" update
    "${apt[@]}" download "$1"
}

# make_user_mode VERSION FOLDER
make_user_mode() (
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    config=$PWD/interop/kernels/user-mode.config
    cd "$work"
    fetch_unstable linux-source-"$1"
    dpkg --extract linux-source-"$1"_*.deb package
    tar -xf package/usr/src/linux-source-"$1".tar.xz --exclude='*/drivers/gpu/drm/*/*.[ch]' --exclude='*/Documentation/*/*'
    rm -r package
    source=$PWD/linux-source-$1
    make --quiet -C "$source" ARCH=um O="$PWD"/built KCONFIG_ALLCONFIG="$config" allnoconfig
    nice make --quiet -C "$source" ARCH=um O="$PWD"/built -j"${JOBS:-$(nproc)}" linux
    mkdir -p root/bin root/sbin
    put root "$(command -v busybox)" "$(command -v keyctl)" /sbin/request-key
    ln -s ../bin/request-key root/sbin/
    mkdir -p "$2"
    (cd root && find . | busybox cpio -o -H newc 2> /dev/null | gzip) > "$2"/initrd
    cp built/linux "$2"/linux.new
    mv "$2"/linux.new "$2"/linux
)

if [ "${1:-}" = --rxgk ]; then
    scripts/packages.sh gcc libc6-dev make bison flex bc xz-utils
    make_user_mode 7.2 "$kernels"/rxgk
    exit
fi
if [ "${1:-}" = --openafs ]; then
    package=$(image "${packages[0]}")
    release=${package#linux-image-}
    scripts/packages.sh openafs-client "linux-headers-$release" dkms openafs-modules-dkms
    source=$(dpkg-query --showformat '${source:Upstream-Version}' --show openafs-modules-dkms)
    dkms install "openafs/$source" -k "$release"
    make_machine "$package" "$kernels/$(version "$package")-openafs" /lib/modules/"$release"/updates/dkms/openafs.ko
    exit
fi
for meta in "${packages[@]}"; do
    package=$(image "$meta")
    version=$(version "$package")
    [ -n "$version" ] && [ ! -e "$kernels/$version"/initrd ] || continue
    make_machine "$package" "$kernels/$version" \
        || echo "kernels.sh: a machine with $package could not be made; tests that need it are skipped" >&2
done
