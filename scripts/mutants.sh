#!/bin/bash
# mutants.sh [NAME...]   shows that the tests find the faults in mutants/ (all, or those named).
#
# Each mutants/NAME.patch is one fault made by hand. The text above its diff says what a user would see, and has a line
# "Found by: PROGRAM FILTER...": a program of tests (afs_fuse_tests), or a crate for its unit tests (afs-view), and names
# of tests. This script puts each fault into a clone of HEAD in target/mutants and runs these tests, which have to fail.
# The last line is "N found, N survived"; a patch that does not apply or does not build has survived.
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

for name in "${names[@]}"; do
    patch=$top/mutants/$name.patch
    git -C "$clone" checkout --quiet --force --detach "$head" || exit
    read -ra tests < <(sed -n 's/^Found by: //p' "$patch")
    if [ ${#tests[@]} -lt 2 ]; then
        survives "$name" "$patch has no line \"Found by: PROGRAM FILTER\""
        continue
    fi
    case ${tests[0]} in
        *_tests) program=(--workspace ${features[@]+"${features[@]}"} --test "${tests[0]}") ;;
        *) program=(--package "${tests[0]}" --lib) ;;
    esac
    if ! git -C "$clone" apply "$patch"; then
        survives "$name" "the patch does not apply"
    elif ! log=$("$clone/scripts/rust.sh" cargo test "${program[@]}" --no-run 2>&1); then
        survives "$name" "it does not build"
        tail -n 20 <<< "$log"
    elif log=$("$clone/scripts/rust.sh" timeout "$limit_seconds" cargo test "${program[@]}" -- "${tests[@]:1}" 2>&1); then
        survives "$name" "$(grep '^test result: ' <<< "$log" | tail -n 1) (${tests[*]})"
    else
        found=$((found + 1))
        echo "$name: found by $(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' <<< "$log" | head -n 1)"
    fi
done
git -C "$clone" checkout --quiet --force --detach "$head"
echo "$found found, $survived survived"
[ "$survived" = 0 ]
