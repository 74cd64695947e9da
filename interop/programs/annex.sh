#!/bin/bash
# annex.sh MOUNTED LOCAL   git annex: files are added, fetched into a clone, dropped, unlocked, changed, and checked.
. "$(dirname "${BASH_SOURCE[0]}")"/common.sh
# What it says has names of commits in it, which are of a time and a uuid.
annex() { git annex "$@" > "$HOME/annex.out" 2>&1 || { cat "$HOME/annex.out"; return 1; }; }

work() {
    git init -q -b main origin
    cd origin
    annex init origin
    mkdir data
    for n in 1 2 3 4 5 6; do seq $n $((n * 20000)) > data/file$n; done
    annex add .
    git commit -qm data
    ls -l data | awk 'NR > 1 { print $1, $NF }'
    git annex find | sort
    cd ..
    git clone -q origin clone
    cd clone
    annex init clone
    cat data/file1 2> /dev/null || echo "not here yet"
    annex get data/file1 data/file2 data/file3
    cksum data/file1 data/file2 data/file3
    annex drop data/file2
    [ -e data/file2 ] || echo dropped
    git annex whereis data/file1 | grep -c origin
    annex unlock data/file3
    echo changed >> data/file3
    annex add data/file3
    git commit -qm changed
    annex lock data/file3 || true
    seq 5 > data/own
    annex add data/own
    git commit -qm own
    annex copy --to origin data/own
    annex drop data/own
    annex sync --no-content origin
    annex fsck
    cd ../origin
    annex merge
    git merge -q --no-edit synced/main 2> /dev/null || true
    cksum data/own
    annex fsck
    annex drop --force data/file6
    git annex find --in here | sort
    git fsck --no-progress
    git status --porcelain
}
both work
