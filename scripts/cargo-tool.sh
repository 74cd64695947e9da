#!/bin/bash
# cargo-tool.sh NAME@VERSION [OPTION...]   a program from crates.io that tests or packages need, into target/tools/bin, once. It is not
# optimized: nothing waits for what these programs compute, and building them takes half of the time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
stamp=target/tools/$1
[ ! -e "$stamp" ] || exit 0
mkdir -p target/tools
export CARGO_TARGET_DIR=target/tools/build-$1
export CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
scripts/rust.sh cargo install --quiet --locked --root target/tools "$@"
rm -r "$CARGO_TARGET_DIR"
touch "$stamp"
