#!/bin/bash
# lint.sh [FILE]   format, clippy, documentation, dependencies, and the repository's own rules.
#
# Runs all of them, whatever the first ones find. For each it appends a line to FILE, if given: "ok NAME",
# "failed NAME" or "skipped NAME: REASON".
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
record=${1:-/dev/null}
status=0

# check NAME COMMAND...
check() {
    local name=$1
    shift
    echo "== $name"
    if "$@"; then
        echo "ok $name" >> "$record"
    else
        status=1
        echo "failed $name" >> "$record"
        echo "lint.sh: $name failed: $*" >&2
    fi
}

# needs TOOL NAME: whether this toolchain has cargo-TOOL; if not, NAME is skipped
needs() {
    scripts/rust.sh cargo "$1" --version > /dev/null 2>&1 && return
    echo "lint.sh: $2 skipped: this toolchain has no $1 (on Debian 12: rustfmt-web, rust-web-clippy)" >&2
    echo "skipped $2: this toolchain has no $1" >> "$record"
    return 1
}

scripts/rust.sh || exit 1
read -ra features < <(scripts/features.sh)
needs fmt formatting && check formatting scripts/rust.sh cargo fmt --all --check \
    && check "formatting of backup" scripts/rust.sh cargo fmt --manifest-path backup/Cargo.toml --check
needs clippy clippy && check clippy scripts/rust.sh cargo clippy --workspace --all-targets "${features[@]}" -- -D warnings
check documentation env RUSTDOCFLAGS='-D warnings' scripts/rust.sh cargo doc --workspace "${features[@]}" --no-deps \
    --document-private-items
check dependencies scripts/dependencies.sh
check "dependencies of backup" scripts/dependencies.sh --backup
if git rev-parse --is-inside-work-tree > /dev/null 2>&1; then
    check repository scripts/repository.sh
else
    echo "lint.sh: repository skipped: no git, or this is no git repository" >&2
    echo "skipped repository: no git, or this is no git repository" >> "$record"
fi
exit $status
