#!/bin/bash
# dependencies.sh [LIST]   check the licences of all dependencies, and that none is there in two versions.
# dependencies.sh --backup [LIST]   the same of afar-backup, but for versions: those are for its repository's library to choose.
#
# LIST is a file of lines "name<TAB>version<TAB>licence" to check instead, for trying this script out.
# A second version of a crate needs a line "name: reason" in scripts/duplicate-crates.txt, another licence one in
# scripts/licence-exceptions.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exceptions=scripts/duplicate-crates.txt
licences=scripts/licence-exceptions.txt
selection=(--workspace --features afar/etcd)
if [ "${1:-}" = --backup ]; then
    shift
    exceptions='' licences=backup/licence-exceptions.txt
    selection=(--manifest-path backup/Cargo.toml --all-features)
fi

# What is built or run, also by tests and build scripts. Only for this system: afar is for Linux. --locked fails when
# Cargo.lock is missing or out of date.
list() {
    scripts/rust.sh cargo tree "${selection[@]}" --locked --edges normal,build,dev --prefix none --format '{p}|{l}' \
        | sed -e 's/ (\*)$//' | awk -F'|' -v OFS='\t' '
            NF { split($1, part, " "); sub(/^v/, "", part[2]); print part[1], part[2], $2 }' | sort -u
}

if [ $# -gt 0 ]; then crates=$(cat "$1"); else crates=$(list); fi
[ -n "$crates" ] || { echo "dependencies.sh: cargo tree listed no crates" >&2; exit 1; }

printf '%s\n' "$crates" | awk -F'\t' -v exceptions="$exceptions" -v licences="$licences" '
    BEGIN {
        count = split("MIT Apache-2.0 BSD-2-Clause BSD-3-Clause ISC 0BSD Unicode-3.0", names, " ")
        for (i = 1; i <= count; i++) allowed[names[i]] = 1
        if (exceptions != "") excepts(exceptions, excepted)
        excepts(licences, licensed)
    }
    function excepts(file, names,    line, colon, name, reason) {
        while ((getline line < file) > 0) {
            if (line ~ /^[ \t]*(#|$)/) continue
            colon = index(line, ":")
            name = substr(line, 1, colon - 1); reason = substr(line, colon + 1)
            gsub(/[ \t]/, "", reason)
            if (!colon || reason == "") complain("no reason in " file " for: " line)
            else names[name] = 1
        }
    }
    function complain(text) { print "dependencies.sh: " text > "/dev/stderr"; failed = 1 }

    # An SPDX expression: OR of ANDs of a licence, perhaps WITH an exception, or of one in parentheses. Each function
    # reads from token[at] on and returns whether that part may be used.
    function either(    ok) {
        ok = both()
        while (token[at] == "OR") { at++; ok = both() || ok }
        return ok
    }
    function both(    ok) {
        ok = single()
        while (token[at] == "AND") { at++; ok = single() && ok }
        return ok
    }
    function single(    ok, name) {
        if (token[at] == "(") {
            at++; ok = either()
            if (token[at] != ")") broken = 1
            at++
            return ok
        }
        name = token[at++]
        if (name == "" || name ~ /^(OR|AND|WITH|\))$/) broken = 1
        ok = name in allowed
        if (token[at] == "WITH") {
            at++
            # An exception only adds permissions, but this is the one that was looked at.
            ok = ok && token[at++] == "LLVM-exception"
        }
        return ok
    }
    function allows(expression,    ok, tokens) {
        gsub(/[()]/, " & ", expression)
        gsub(/\//, " OR ", expression)         # as crates wrote it before SPDX
        split("", token)
        tokens = split(expression, token, " ")
        at = 1; broken = 0
        ok = either()
        return ok && !broken && at == tokens + 1
    }
    NF {
        total++
        if ($3 == "") complain($1 " " $2 " states no licence")
        else if (!allows($3) && !($1 in licensed)) complain("the licence of " $1 " " $2 " is not one of those allowed: " $3)
        if (!(($1, $2) in seen)) {
            seen[$1, $2] = 1
            versions[$1] = versions[$1] " " $2
            number[$1]++
        }
    }
    END {
        for (name in number) {
            if (exceptions != "" && number[name] > 1 && !(name in excepted))
                complain(name " is there in several versions:" versions[name] "; use one, or give a reason in " exceptions)
            if (number[name] == 1 && name in excepted)
                complain(name " is there in one version only: take it out of " exceptions)
        }
        for (name in excepted)
            if (!(name in number)) complain(name " is no dependency: take it out of " exceptions)
        for (name in licensed)
            if (!(name in number)) complain(name " is no dependency: take it out of " licences)
        if (failed) exit 1
        print total " crates, all with a licence that is allowed"
    }'
