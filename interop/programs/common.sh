# Shared by the scripts beside it; sourced, not run. "NAME.sh MOUNTED LOCAL": the same work is done below a folder in a mount and below
# one on a local file system, and has to come out equal. Both folders are left as they were when it did.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ME=$(basename "$0" .sh)
die() { echo "$ME: $*" >&2; exit 1; }
[ $# -ge 2 ] && [ -d "$1" ] && [ -d "$2" ] || die "usage: $ME.sh MOUNTED LOCAL: two folders"
MOUNTED=$(mktemp -d "$1/$ME-XXXXXX")
LOCAL=$(mktemp -d "$2/$ME-XXXXXX")
shift 2
# Nothing of the user's own configuration, and no time of day in what is made.
export LC_ALL=C TZ=UTC HOME=$LOCAL.home GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
export GIT_AUTHOR_DATE="1700000000 +0000" GIT_COMMITTER_DATE="1700000000 +0000"
# It tells of its progress what takes it over two seconds, which differs.
export GIT_PROGRESS_DELAY=3600
mkdir "$HOME"
# Who has no ticket owns nothing of what he makes in AFS, which git asks to be told.
printf '[safe]\n\tdirectory = *\n' > "$HOME/.gitconfig"
umask 022

ended() {
    local status=$?
    [ $status = 0 ] || { echo "$ME: FAILED, see $MOUNTED and $LOCAL" >&2; exit $status; }
    chmod -R u+w "$MOUNTED" "$LOCAL"
    rm -rf "$MOUNTED" "$LOCAL" "$HOME"
    echo "$ME: ok"
}
trap ended EXIT
trap 'exit 1' INT TERM HUP

# both COMMAND...: runs it in the local folder and in the mounted one; what it prints has to be the same, but for the folders' names.
both() {
    local place out
    for place in "$LOCAL" "$MOUNTED"; do
        out=$HOME/$([ "$place" = "$LOCAL" ] && echo local || echo mounted).out
        (cd "$place" && "$@") > "$out.raw" 2>&1 || { cat "$out.raw" >&2; die "in $place failed: $*"; }
        sed "s#$place#HERE#g" "$out.raw" > "$out"
    done
    diff "$HOME"/local.out "$HOME"/mounted.out || die "prints something else in the mount (>): $*"
}

# same NAME: what is below it in both folders is the same: names, kinds, contents, mode bits, times of files, targets of links.
same() {
    diff -r --no-dereference "$LOCAL/$1" "$MOUNTED/$1" || {
        (cd "$LOCAL" && find "$1" -type f) | while read -r file; do
            cmp -l "$LOCAL/$file" "$MOUNTED/$file" > "$HOME/cmp" 2>&1 || differs "$file"
        done
        die "$1 is not the same (line ${BASH_LINENO[0]})"
    }
    cmp <(listing "$LOCAL/$1") <(listing "$MOUNTED/$1") || {
        diff <(listing "$LOCAL/$1") <(listing "$MOUNTED/$1") | head -n 20
        die "$1 has other attributes in the mount (>)"
    }
}

# differs FILE: says how; $HOME/cmp has the bytes
differs() {
    echo "$1: $(stat -c %s "$LOCAL/$1") and $(stat -c %s "$MOUNTED/$1") bytes, $(grep -c '^ *[0-9]' "$HOME/cmp") differ, from"
    head -n 2 "$HOME/cmp"; echo to; tail -n 2 "$HOME/cmp"
} >&2

# listing FOLDER: what there is below it
listing() {
    (cd "$1" && find . -type d -printf '%p %y %m\n' -o -type l -printf '%p %y %l\n' -o -printf '%p %y %m %s\n' | sort)
}

# tree FOLDER DIRECTORIES FILES: makes directories with so many files each, of no byte up to some 100 KiB, some executable, some of
# long names, and a symbolic link in each.
tree() {
    local d f
    for ((d = 0; d < $2; d++)); do
        mkdir -p "$1/d$((d % 7))/e$d"
        for ((f = 0; f < $3; f++)); do
            seq $((d * f)) $((d * f + (d * 31 + f * 17) % 97 * (f % 19 == 0 ? 150 : 4))) > "$1/d$((d % 7))/e$d/f$f"
        done
        chmod 755 "$1/d$((d % 7))/e$d/f1"
        ln -s "../e$d/f1" "$1/d$((d % 7))/e$d/link"
        cp "$1/d$((d % 7))/e$d/f2" "$1/d$((d % 7))/e$d/$(printf 'a name of spaces and %0150d' "$d")"
    done
}
