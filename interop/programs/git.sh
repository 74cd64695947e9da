#!/bin/bash
# git.sh MOUNTED LOCAL   a repository of some thousand files: cloned, changed, committed, branched, merged, packed, pushed and pulled.
. "$(dirname "${BASH_SOURCE[0]}")"/common.sh

src=$LOCAL/src
mkdir "$src"
tree "$src" 50 60 # 3,050 files
git -C "$src" init -q -b main
git -C "$src" config gc.auto 0
git -C "$src" add -A
git -C "$src" commit -qm one
[ "$(git -C "$src" ls-files | wc -l)" -gt 3000 ] || die "too few files"

work() {
    git clone -q "file://$src" clone
    cd clone
    git status --porcelain
    for f in d1/e8/f3 d2/e9/f4 d3/e10/f5; do echo more >> $f; done
    git mv d4/e11 d4/moved
    git rm -q d5/e12/f7
    echo new > d6/new; chmod 755 d6/new; ln -s new d6/to-new
    git status --porcelain
    git add -A
    git commit -qm two
    git checkout -q -b other HEAD~1
    for d in d0/e7 d0/e14; do sed -i s/1/2/ $d/*[0-9]; done
    git diff --stat | tail -n 1
    git commit -qam three
    git merge -q -m merged main
    git rebase -q main
    git checkout -q main
    git merge -q --ff-only other 2>&1 || git merge -q -m again other
    echo stashed >> d1/e1/f1
    git stash -q
    git status --porcelain
    git stash pop -q
    git status --porcelain
    git checkout -q -- .
    git clean -qfdx
    git gc -q
    git fsck --no-progress
    git status --porcelain
    git log --format='%H %T %s'
    git ls-files -s | cksum
    cd ..
    git init -q --bare bare.git
    git -C clone push -q ../bare.git main other
    git clone -q bare.git second
    (cd second && echo x > x && git add x && git commit -qm x && git push -q)
    git -C clone pull -q ../bare.git main
    git -C clone rev-parse HEAD
    git -C second fsck --no-progress
    git -C clone grep -c 99 -- d2 | cksum
}
both work
rm -rf "$LOCAL/clone/.git" "$MOUNTED/clone/.git"
same clone
git -C "$src" pull -q "$MOUNTED/bare.git" main
[ -z "$(git -C "$src" status --porcelain)" ] || die "what was pulled from the mount"
