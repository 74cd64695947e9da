#!/bin/bash
# test.sh [--all]   what is tested before a commit, from nothing: packages, build, the tests of afar alone, a short run of the fuzzers, lint.
# With --all, what CI tests: with OpenAFS's programs and stock kernels too, afar-backup, and the Debian packages.
#
# Goes on after a failure. The last line is "N passed, N failed, N skipped": over all of cargo's test results and those
# of packaging/run, which ends with such a line.
# A test that cannot run here appends a line "NAME: REASON" to the file $AFAR_SKIP_LOG and returns; cargo counts it as
# passed, this script as skipped. A failed lint counts as one failure, and one without its tool as skipped.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p target
is_all=
[ "${1:-}" != --all ] || is_all=1
export AFAR_SKIP_LOG=$PWD/target/skipped-tests.log
export CARGO_TERM_COLOR=never
# Most tests wait; those that keep a processor busy take turns (crates/afs-lab/src/cpu.rs).
export RUST_TEST_THREADS=4
lint_record=$PWD/target/lint-record
output=$PWD/target/test-output.log
: > "$AFAR_SKIP_LOG"
: > "$lint_record"
# When cargo's tests have to have ended, in seconds from the start, of CI's 90 minutes: where nobody sees that a test hangs, the others are
# counted. The output says which runs for long.
tests_end=5000
passed=0 failed=0 skipped=0
notes=() times=()
part=packages part_began=0

# begin NAME: the next part, whose time is told at the end
begin() {
    times+=("$part $((SECONDS - part_began))")
    part=$1 part_began=$SECONDS
    echo "=== $part"
}

fail() { failed=$((failed + 1)); notes+=("FAILED: $*"); }

finish() {
    local line
    echo
    [ ${#notes[@]} = 0 ] || printf '%s\n' "${notes[@]}"
    sort -u "$AFAR_SKIP_LOG" | while read -r line; do echo "SKIPPED: $line"; done
    begin end > /dev/null
    echo "SECONDS: $(printf '%s, ' "${times[@]}")all $SECONDS"
    [ -n "$is_all" ] || echo "LEFT to make test ALL=1, which CI runs: OpenAFS's programs, stock kernels (crates/interop), afar-backup (backup), Debian packages (packaging/run)"
    echo "LEFT to make nightly: more seeds and longer runs of the same, and afar-backup's package and repositories elsewhere"
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
    exit
}

# sum_cargo FILE: adds up the "test result" lines of a cargo test
sum_cargo() {
    local p f i
    read -r p f i < <(awk '
        /^test result: / {
            for (n = 2; n <= NF; n++) {
                if ($n ~ /^passed/) p += $(n - 1)
                if ($n ~ /^failed/) f += $(n - 1)
                if ($n ~ /^ignored/) i += $(n - 1)
            }
        }
        END { print p + 0, f + 0, i + 0 }' "$1")
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + i))
}

# note_failures FILE: a note for each test that failed in FILE, the output of a cargo test: its program, its name, and the
# last lines it printed, from its panic on: for those who see only the end of a long log.
note_failures() {
    local line
    while IFS= read -r line; do notes+=("$line"); done < <(awk -v most=12 '
        function tell(    first, n) {
            if (name == "") return
            print "FAILED: " program " " name
            first = panic ? panic : count - most + 1
            if (first < 1) first = 1
            for (n = first; n <= count && n < first + most; n++) print "    " substr(lines[n], 1, 400)
            name = ""
        }
        /^ +Running / { program = $NF; gsub(/.*\/|-[^-]*$/, "", program) }
        /^ +Doc-tests / { program = "documentation of " $2 }
        /^failures:$/ { tell(); inside = 1; next }
        /^test result: / { tell(); inside = 0 }
        inside && /^---- .+ ----$/ { tell(); name = $2; count = panic = before = 0; next }
        name != "" && NF {
            lines[++count] = $0
            # The panic of a thread comes before that of the test which waits for it.
            if (/ panicked at /) { before = panic; panic = count }
            else if (before && panic == count - 1 && /^a scoped thread panicked|Any \{ \.\. \}/) panic = before
        }' "$1")
}

scripts/packages.sh || fail "scripts/packages.sh"
scripts/rust.sh || { fail "no Rust that is new enough"; finish; }

read -ra features < <(scripts/features.sh)
[ ${#features[@]} -gt 0 ] || { skipped=$((skipped + 1)); notes+=("SKIPPED: all tests of etcd: there is no protoc that works"); }

begin build
# The programs from elsewhere, most of which it has to wait for, beside it.
scripts/tools.sh ${is_all:+--all} > target/tools.log 2>&1 & tools=$!
scripts/rust.sh cargo build --workspace --lib --bins --tests "${features[@]}" || { wait "$tools"; fail "build"; finish; }
# The tests that run the programs need not build them again.
export AFAR_IS_BUILT=1

begin tools
wait "$tools" || fail "scripts/tools.sh"
cat target/tools.log

# Most tests wait, so those of stock peers run beside those of afar alone, but for the mounts of afar_tests, which come first: programs in
# them look at the time. Lint runs beside, and so do the packages, which are made of what is built. Lint is not begun before cargo runs the
# first tests, as they would wait for each other.
outputs=("$output") peers_output=$PWD/target/peers-output.log tests_ended=target/tests-ended
backup_output=$PWD/target/backup-output.log
[ -z "$is_all" ] || outputs+=("$peers_output" "$backup_output")
lint() {
    until grep -q '^ *Running ' "$output" || [ -e "$tests_ended" ]; do sleep 1; done
    nice -n 19 scripts/lint.sh "$lint_record" > target/lint.log 2>&1
}
# The workspace of afar-backup, whose servers are the program that is built.
backups() {
    scripts/rust.sh "${limit[@]}" cargo test --manifest-path backup/Cargo.toml --locked --no-fail-fast > "$backup_output" 2>&1
}
packages() {
    # They count what they skip themselves.
    env -u AFAR_SKIP_LOG scripts/rust.sh packaging/run > target/packages.log 2>&1
}

begin tests
rm -f "$tests_ended"
for file in "${outputs[@]}"; do : > "$file"; done
before=$failed
limit=() left=$((tests_end - SECONDS))
[ -t 0 ] || limit=(timeout --kill-after=60 "$((left > 60 ? left : 60))")
# cargo_test SELECTION...: of the same build each time: without a crate, cargo would choose other features for the rest.
cargo_test() { scripts/rust.sh "${limit[@]}" cargo test --workspace "${features[@]}" --no-fail-fast "$@" 2>&1; }
lint & lint=$!
[ -z "$is_all" ] || { packages & packages=$!; }
statuses=()
alone() {
    cargo_test "$@" | tee -a "$output"
    statuses+=("${PIPESTATUS[0]}")
}
mapfile -t programs < <(sed -n 's/^name = "\(.*_tests\)"$/--test=\1/p' crates/*/Cargo.toml)
alone --test afar_tests
[ -z "$is_all" ] || {
    cargo_test --test cells --test interop > "$peers_output" & peers=$!
    backups & backups=$!
}
alone --lib --bins "${programs[@]/--test=afar_tests/--test=short_run}"
alone --doc
[ -z "$is_all" ] || {
    wait "$peers"
    statuses+=("$?")
    wait "$backups"
    statuses+=("$?")
    cat "$peers_output" "$backup_output"
}
touch "$tests_ended"
for file in "${outputs[@]}"; do
    sum_cargo "$file"
    note_failures "$file"
done
for status in "${statuses[@]}"; do
    # 137 if it took more than a signal to end.
    case $status in 124 | 137) fail "the tests had not ended $tests_end s after the start" ;; esac
    # A test program that died has no result line.
    [ "$status" = 0 ] || [ "$failed" -gt "$before" ] || fail "cargo test ended with status $status"
done

begin lint
lint_status=0
wait "$lint" || lint_status=$?
cat target/lint.log
while read -r outcome name; do
    case $outcome in
        failed) fail "lint: $name" ;;
        skipped) skipped=$((skipped + 1)); notes+=("SKIPPED: lint: $name") ;;
    esac
done < "$lint_record"
[ $lint_status = 0 ] || grep -q '^failed' "$lint_record" || fail "lint"

if [ -n "$is_all" ]; then
    suite=packaging/run
    begin "$suite"
    status=0
    wait "$packages" || status=$?
    cat target/packages.log
    if [[ $(tail -n 1 target/packages.log) =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
        passed=$((passed + BASH_REMATCH[1]))
        failed=$((failed + BASH_REMATCH[2]))
        skipped=$((skipped + BASH_REMATCH[3]))
        while read -r _ name; do notes+=("FAILED: $suite $name"); done < <(grep '^FAILED ' target/packages.log)
        [ "$status" = 0 ] || [ "${BASH_REMATCH[2]}" != 0 ] || fail "$suite ended with status $status"
    else
        fail "$suite did not end with its results (status $status)"
    fi
fi

logged=$(sort -u "$AFAR_SKIP_LOG" | wc -l)
passed=$((passed - logged)) skipped=$((skipped + logged))
finish
