#!/bin/bash
# repository.sh   rules for what is in the repository that no other tool knows: nothing unfinished or switched off, no
# paths of somebody's machine, a short README.md, an ARCHITECTURE.md and links that lead to existing files.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
status=0

# forbid WHAT PATTERN PATHSPEC...: complains about each line that matches. Files that are not committed yet count too.
forbid() {
    local what=$1 pattern=$2 found
    shift 2
    found=$(git grep --untracked -nIE -e "$pattern" -- "$@") || [ $? = 1 ]
    [ -n "$found" ] || return 0
    printf 'repository.sh: %s:\n%s\n' "$what" "$found" >&2
    status=1
}

forbid 'unfinished code' '\b(todo|unimplemented)!\(' '*.rs'
forbid 'a test that is switched off (let it say why it is skipped, see CONTRIBUTING.md)' '#\[ignore' '*.rs'
# The brackets keep these patterns from finding themselves.
forbid 'paths of one machine' '(^|[^A-Za-z0-9_.-])/(roo[t]|wor[k]|home/[a-z]+)/|\.\./share[d]' .

# names: what ARCHITECTURE.md calls a file or folder: link targets, and words in backquotes that end like a file or
# in a slash. One pair of braces is expanded.
names() {
    awk '
        function expand(name,    open, close_, before, after, parts, n, i) {
            open = index(name, "{"); close_ = index(name, "}")
            if (!open || close_ < open) { print name; return }
            before = substr(name, 1, open - 1); after = substr(name, close_ + 1)
            n = split(substr(name, open + 1, close_ - open - 1), parts, ",")
            for (i = 1; i <= n; i++) expand(before parts[i] after)
        }
        function consider(name) {
            sub(/#.*/, "", name); sub(/^\.\//, "", name)
            if (name ~ /[][ \t<>*()$:"|]/ || name ~ /^[\/~-]/ || name == "") return
            if (name ~ /\/$/ || name ~ /\.(rs|md|toml|sh|c|h|txt|json|lock)$/) expand(name)
        }
        {
            line = $0
            while (match(line, /`[^`]+`/)) {
                consider(substr(line, RSTART + 1, RLENGTH - 2)); line = substr(line, RSTART + RLENGTH)
            }
            line = $0
            while (match(line, /\]\([^)]+\)/)) {
                consider(substr(line, RSTART + 2, RLENGTH - 3)); line = substr(line, RSTART + RLENGTH)
            }
        }' "$1" | sort -u
}

if [ -f ARCHITECTURE.md ]; then
    files=$(git ls-files --cached --others --exclude-standard | sed 's|^|/|')
    while read -r name; do
        # "loss.rs" and "transmit/loss.rs" are as good as the whole path; "congestion/" is a folder.
        case $name in
            */) found=$(grep -cF "/$name" <<< "$files") || true ;;
            *) found=$(awk -v want="/$name" '
                length >= length(want) && substr($0, length - length(want) + 1) == want { n++ }
                END { print n + 0 }' <<< "$files") ;;
        esac
        if [ "$found" = 0 ]; then
            echo "repository.sh: ARCHITECTURE.md names $name, which does not exist" >&2
            status=1
        fi
    done < <(names ARCHITECTURE.md)
fi
# A crate's tests are one program, and a file that tests/main.rs does not name is never run.
for main in crates/*/tests/main.rs; do
    for file in "${main%main.rs}"*.rs "${main%main.rs}"*/mod.rs; do
        [ -f "$file" ] && [ "$file" != "$main" ] || continue
        name=${file#"${main%main.rs}"}
        name=${name%/mod.rs}
        if ! grep -q "^mod ${name%.rs};$" "$main"; then
            echo "repository.sh: $main does not name $file, so its tests never run" >&2
            status=1
        fi
    done
done
# A newcomer reads it in one go (CONTRIBUTING.md, "How text is written").
lines=$(wc -l < README.md)
if [ "$lines" -gt 150 ]; then
    echo "repository.sh: README.md has $lines lines, 150 at most are allowed: move details to docs/" >&2
    status=1
fi

# What a page links to has to be there, sections aside.
while read -r page; do
    [ -f "$page" ] || continue
    while read -r link; do
        if [ ! -e "$(dirname "$page")/$link" ]; then
            echo "repository.sh: $page links to $link, which does not exist" >&2
            status=1
        fi
    done < <(grep -oE '\]\([^) ]+\)' "$page" | sed -E 's/^\]\(//; s/\)$//; s/#.*//' | grep -vE '^$|:' | sort -u)
done < <(git ls-files --cached --others --exclude-standard '*.md')

[ $status = 0 ] && echo "nothing unfinished, no local paths, no missing files"
exit $status
