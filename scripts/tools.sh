#!/bin/bash
# tools.sh   build the programs from crates.io that tests run and do not link: fsx, which does random things to a file and knows what
# must come of them, and pjdfstest, which asks whether a file system is as POSIX wants it. Unpacks Heimdal's KDC, which Debian does
# not install beside MIT's.
#
# They go into target/tools, once. Where that is not possible it says so, and succeeds: the tests that need them skip
# themselves and are counted as skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# NAME VERSION; pjdfstest links with libacl.
tools=("fsx 0.3.2" "pjdfstest 0.2.2")

for tool in "${tools[@]}"; do
    read -r name version <<< "$tool"
    stamp=target/tools/$name-$version
    [ -e "$stamp" ] && continue
    mkdir -p target/tools
    if CARGO_TARGET_DIR=target/tools/build scripts/rust.sh cargo install --quiet --locked --root target/tools "$name@$version"; then
        touch "$stamp"
    else
        echo "tools.sh: $name $version could not be built; tests that need it are skipped" >&2
    fi
done
rm -rf target/tools/build

if [ ! -e target/tools/heimdal/usr ] && command -v dpkg > /dev/null; then
    mkdir -p target/tools/heimdal
    if (cd target/tools/heimdal && apt-get download --quiet=2 heimdal-kdc heimdal-clients 2> /dev/null); then
        for package in target/tools/heimdal/*.deb; do
            dpkg --extract "$package" target/tools/heimdal
        done
        rm target/tools/heimdal/*.deb
    else
        echo "tools.sh: Heimdal's KDC could not be fetched; tests that need it are skipped" >&2
    fi
fi
