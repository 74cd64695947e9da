#!/bin/bash
# deb.sh [PROFILE]   the Debian packages afar-tools, afar-server, afar-client and libpam-afar, into target/debian, from what cargo has built with this
# profile (default release, which is built first; of another one nothing is built).
#
# cargo-deb makes them, by what crates/afar/Cargo.toml and crates/pam-afar/Cargo.toml say; it comes from crates.io into target/tools, once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
profile=${1:-release}
export CARGO_TERM_COLOR=never

# Without xz, which would be a C library to build: packages are a little larger.
scripts/cargo-tool.sh cargo-deb@3.8.0 --no-default-features --features gzip
if [ "$profile" = release ]; then
    scripts/rust.sh cargo build --release --package afar --bins --features etcd
    scripts/rust.sh cargo build --release --package pam-afar
    folder=target/release
    options=()
else
    # For tests: large programs, which are to be packed soon.
    folder=target/debug
    options=(--fast)
fi

# The classic names are those that the program answers to: it says so itself. The links lead to the program, here and where they are installed.
rm -rf target/deb
mkdir -p target/deb/bin target/deb/sbin
ln -s ../bin/afar target/deb/sbin/mount.afar
names=$("$folder"/afar help | sed -n 's/^Through a link with one of these names, afar runs that command: //p' | tr -d ,)
[ -n "$names" ] || { echo "deb.sh: afar does not say its classic names" >&2; exit 1; }
for name in $names; do
    ln -s ../../../bin/afar "target/deb/bin/$name"
done

rm -rf target/debian
for variant in "" server client; do
    PATH=$PWD/target/tools/bin:$PATH scripts/rust.sh cargo deb --no-build --profile "$profile" --package afar \
        "${options[@]}" ${variant:+--variant "$variant"} --output target/debian/
done
PATH=$PWD/target/tools/bin:$PATH scripts/rust.sh cargo deb --no-build --profile "$profile" --package pam-afar --multiarch=same \
    "${options[@]}" --output target/debian/
