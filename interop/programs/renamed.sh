#!/bin/bash
# renamed.sh MOUNTED LOCAL   rename over open files: who has the old file open goes on with it, who opens the name gets a whole file, the
# old one or the new, and never none.
. "$(dirname "${BASH_SOURCE[0]}")"/common.sh

held() {
    local n
    for n in 1 2 3 4 5 6; do seq "$n" $((n * 7000)) > file; [ "$n" != 1 ] || exec 3< file; [ "$n" != 3 ] || exec 4<> file
        seq "$n" $((n * 5000)) > new; mv -f new file; done
    cksum <&3
    # Of the file that descriptor 4 has, which has no name any more, the beginning is written over.
    printf 'written after it was replaced' >&4
    cat <&4 | cksum
    cksum < file
    exec 3<&- 4<&-
    # Into another directory, over a file that is open for writing there.
    mkdir there
    echo old > there/file
    exec 5>> there/file
    mv -f file there/file
    echo appended >&5
    exec 5>&-
    cksum < there/file
    # Directories, over an empty one that is somebody's current one.
    mkdir one two
    echo inside > one/file
    (cd two && mv -fT ../one ../two && cat ../two/file)
    # While it is open, a file is removed and another takes its name.
    echo first > name
    exec 6<> name
    rm name
    echo second > name
    cat <&6
    cat name
    exec 6<&-
    ls -A
}
both held

# A reader, while the name is given to one file after the other. Each has one letter, and a length that goes with it.
whole() {
    local letters=abcdefghij n letter
    make_letter() { head -c $(($1 * 9000 + 17)) /dev/zero | tr '\0' "${letters:$1:1}" > "$2"; }
    make_letter 0 name
    (
        for n in $(seq 150); do
            make_letter $((n % 10)) next
            mv -f next name
        done
        touch done
    ) &
    while [ ! -e done ]; do
        # Not cp, which looks at a name twice and gives up when it is another file by then, here as on a local disk.
        cat name > seen || die "there was no file of the name"
        letter=$(head -c 1 seen)
        n=${letters%%"$letter"*}
        [ "$(wc -c < seen)" = $((${#n} * 9000 + 17)) ] && [ -z "$(tr -d "$letter" < seen)" ] || die "a mixture of two files"
    done
    wait $!
    rm seen done
    cksum name
}
both whole
