#!/bin/bash
# mutants.sh [NAME...]   shows that the tests find the faults in mutants/ (all, or those named).
#
# Each mutants/NAME.patch is one fault made by hand. The text above its diff says what a user would see, and has a line
# "Found by: PROGRAM FILTER...": a program of tests (afs_fuse_tests), or a crate for its unit tests (afs-view), and names
# of tests. This script puts each fault into a clone of HEAD in target/mutants and runs these tests: one has to say that it failed, and all
# have to pass without the fault. The last line is "N found, N survived"; a patch that does not apply or does not build has survived.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
top=$PWD clone=$PWD/target/mutants found=0 survived=0
# Of a test that hangs. The tests themselves give up after two minutes.
limit_seconds=600
# Crates that others publish are the same there and here.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$top/target} CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0

names=("$@")
[ $# -gt 0 ] || for patch in mutants/*.patch; do
    patch=${patch##*/} names+=("${patch%.patch}")
done
read -ra features < <(scripts/features.sh)
# The clone stays for the next time, when cargo builds only what has changed.
[ -d "$clone" ] || git clone --quiet --shared --no-checkout . "$clone" || exit
head=$(git rev-parse HEAD)
git -C "$clone" fetch --quiet "$top" HEAD || exit

survives() {
    survived=$((survived + 1))
    echo "$1: SURVIVED: $2"
}

# tests NAME: the program and the filters of a fault
tests() { sed -n 's/^Found by: //p' "$top/mutants/$1.patch"; }

# run NAME: builds and runs the tests of a fault in the clone as it is; the status is 125 if they do not build
run() {
    local program filters
    read -ra filters < <(tests "$1")
    case ${filters[0]-} in
        # These run target/debug/afar, which would then have the fault for other tests too.
        afar_tests) echo "name a test on a lower floor" && return 125 ;;
        *_tests) program=(--workspace ${features[@]+"${features[@]}"} --test "${filters[0]}") ;;
        *) program=(--package "${filters[0]-}" --lib) ;;
    esac
    "$clone/scripts/rust.sh" cargo test "${program[@]}" --no-run 2>&1 || return 125
    "$clone/scripts/rust.sh" timeout "$limit_seconds" cargo test "${program[@]}" -- "${filters[@]:1}" 2>&1
}

git -C "$clone" checkout --quiet --force --detach "$head" || exit
sound=()
for name in "${names[@]}"; do
    if ! log=$(run "$name") || ! grep -q '^test .* ok$' <<< "$log"; then
        survives "$name" "its tests do not pass without it ($(tests "$name"))"
    else
        sound+=("$name")
    fi
done
for name in ${sound[@]+"${sound[@]}"}; do
    git -C "$clone" checkout --quiet --force --detach "$head" || exit
    if ! git -C "$clone" apply "$top/mutants/$name.patch"; then
        survives "$name" "the patch does not apply"
        continue
    fi
    log=$(run "$name")
    if [ $? = 125 ]; then
        survives "$name" "it does not build"
        tail -n 20 <<< "$log"
    else
        by=$(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' <<< "$log" | head -n 1)
        if [ -z "$by" ]; then
            survives "$name" "$(grep '^test result: ' <<< "$log" | tail -n 1) ($(tests "$name"))"
        else
            found=$((found + 1))
            echo "$name: found by $by"
        fi
    fi
done
git -C "$clone" checkout --quiet --force --detach "$head"
echo "$found found, $survived survived"
[ "$survived" = 0 ]
