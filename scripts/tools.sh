#!/bin/bash
# tools.sh [--all | --s3]   build the programs from crates.io that tests run and do not link: fsx, which does random things to a file and knows what
# must come of them, and pjdfstest, which asks whether a file system is as POSIX wants it. Unpacks Heimdal's KDC, which Debian does
# not install beside MIT's, and its daemon for credential caches; and an ssh server, which
# would be a service of this machine if it were installed.
#
# With --all, kernels.sh does the same for Debian's kernels. With --s3, builds versitygw alone, a server of S3 for afar-backup's tests.
#
# They go into target/tools, once. Where that is not possible it says so, and succeeds: the tests that need them skip
# themselves and are counted as skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ "${1:-}" = --s3 ]; then
    versitygw=versitygw@v1.7.0
    [ ! -e "target/tools/$versitygw" ] || exit 0
    # Where Go's own installation is, too. One that is too old would fetch another.
    if PATH=$PATH:/usr/local/go/bin GOTOOLCHAIN=local GOBIN=$PWD/target/tools/bin CGO_ENABLED=0 \
        go install "github.com/versity/versitygw/cmd/$versitygw"; then
        touch "target/tools/$versitygw"
    else
        echo "tools.sh: versitygw could not be built, which needs Go 1.25; tests that need it are skipped" >&2
    fi
    exit 0
fi

# pjdfstest links with libacl.
for tool in fsx@0.3.2 pjdfstest@0.2.2; do
    scripts/cargo-tool.sh "$tool" || echo "tools.sh: $tool could not be built; tests that need it are skipped" >&2
done

if [ ! -e target/tools/heimdal/usr/sbin/kcm ] && command -v dpkg > /dev/null; then
    mkdir -p target/tools/heimdal
    if (cd target/tools/heimdal && apt-get download --quiet=2 heimdal-kdc heimdal-clients heimdal-kcm 2> /dev/null); then
        for package in target/tools/heimdal/*.deb; do
            dpkg --extract "$package" target/tools/heimdal
        done
        rm target/tools/heimdal/*.deb
    else
        echo "tools.sh: Heimdal's KDC and KCM could not be fetched; tests that need it are skipped" >&2
    fi
fi

if [ ! -e target/tools/openssh/usr/sbin/sshd ] && command -v dpkg > /dev/null; then
    mkdir -p target/tools/openssh
    if (cd target/tools/openssh && apt-get download --quiet=2 openssh-server libwrap0 2> /dev/null); then
        for package in target/tools/openssh/*.deb; do
            dpkg --extract "$package" target/tools/openssh
        done
        rm target/tools/openssh/*.deb
    else
        echo "tools.sh: an ssh server could not be fetched; the test that needs it is skipped" >&2
    fi
fi

[ "${1:-}" != --all ] || scripts/kernels.sh
