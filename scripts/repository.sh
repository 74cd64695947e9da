#!/bin/bash
# repository.sh   rules for what is in the repository that no other tool knows: nothing unfinished or switched off, no
# paths of somebody's machine, short README.md and ARCHITECTURE.md, and names and links that lead to existing files.
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

# names: what the text at its input calls a file or folder: link targets, pages below docs/, and words in backquotes that
# end like a file or in a slash. One pair of braces is expanded.
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
            line = $0
            while (match(line, /docs\/[a-z0-9\/-]+\.md/)) {
                consider(substr(line, RSTART, RLENGTH)); line = substr(line, RSTART + RLENGTH)
            }
        }' | sort -u
}

# expect_files PAGE FOLDER: complains about each name at the input that is no file: "loss.rs" and "transmit/loss.rs" are as
# good as a whole path below FOLDER, and "congestion/" is a folder.
files=$(git ls-files --cached --others --exclude-standard | sed 's|^|/|')
expect_files() {
    local page=$1 folder=$2 name
    while read -r name; do
        awk -v name="/$name" -v folder="/$folder" '
            BEGIN { is_folder = name ~ /\/$/ }
            $0 == name || (is_folder && index($0, name) == 1) { n++ }
            index($0, folder) == 1 && (is_folder ? index($0, name) : substr($0, length - length(name) + 1) == name) { n++ }
            END { exit !n }' <<< "$files" && continue
        echo "repository.sh: $page names $name, which does not exist" >&2
        status=1
    done
}

expect_files ARCHITECTURE.md '' < <(names < ARCHITECTURE.md)
# What to open for a change stands at the head of each crate. Rustdoc checks the modules, this the files.
for page in crates/*/src/lib.rs crates/*/src/main.rs; do
    [ -f "$page" ] || continue
    expect_files "$page" "${page%src/*}" < <(sed -n 's|^//! \?||p' "$page" | names)
done
# A doc comment starts with a noun or a verb (CONTRIBUTING.md, "How text is written", rule 8), so not with one of these.
words='(Also|And|Are|At|Behind|Between|But|By|Can|For whom|From|If|In the order|Not|Of|On|Or|Over|Since|To|Until|Who|Whoever|Whom|Whose|Why|Without)'
found=$(git grep --untracked -nIE '^ *///' -- '*.rs' | awk -F: -v words="$words" '
    { begins = $1 != file || $2 != line + 1; file = $1; line = $2; text = $0; sub(/^[^:]*:[^:]*: *\/\/\/ */, "", text) }
    begins && text ~ "^" words "([ ,.:;?]|$)"')
if [ -n "$found" ]; then
    printf 'repository.sh: a doc comment that starts with neither a noun nor a verb:\n%s\n' "$found" >&2
    status=1
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
# A fault made by hand is of no use once it does not apply any more, or if nobody knows which test finds it.
for patch in mutants/*.patch; do
    if ! grep -q '^Found by: [a-z_-]* [a-z_]' "$patch" || ! git apply --check "$patch"; then
        echo "repository.sh: $patch does not apply, or does not say \"Found by: PROGRAM FILTER\": make it anew for the code as it is" >&2
        status=1
    fi
done
# A newcomer reads them in one go (CONTRIBUTING.md, "How text is written").
while read -r page where; do
    lines=$(wc -l < "$page")
    if [ "$lines" -gt 150 ]; then
        echo "repository.sh: $page has $lines lines, 150 at most are allowed: move details to $where" >&2
        status=1
    fi
done <<< "README.md docs/
ARCHITECTURE.md the lib.rs of a crate"

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
