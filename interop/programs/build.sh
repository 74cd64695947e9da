#!/bin/bash
# build.sh MOUNTED LOCAL   a small C project with a library, a program and its own tests: made with make -j, made again when a header has
# changed, installed, cleaned. What is compiled is compared byte by byte.
. "$(dirname "${BASH_SOURCE[0]}")"/common.sh
MODULES=40

project() {
    mkdir -p project/{src,include,tests}
    cd project
    for ((n = 0; n < MODULES; n++)); do
        cat > include/m$n.h << EOF
#pragma once
#include <stddef.h>
struct m$n { size_t count; unsigned values[$((n + 1))]; };
unsigned m$n(struct m$n *it, unsigned seed);
EOF
        cat > src/m$n.c << EOF
#include "m$n.h"
#include "m$((n * 7 % MODULES)).h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
unsigned m$n(struct m$n *it, unsigned seed)
{
    memset(it, 0, sizeof *it);
    for (size_t i = 0; i < $((n + 1)); i++) {
        seed = seed * 1664525u + 1013904223u;
        it->values[i] = seed >> $((n % 13));
        it->count += it->values[i] % 3;
    }
    return seed ^ (unsigned)it->count;
}
EOF
    done
    {
        for ((n = 0; n < MODULES; n++)); do echo "#include \"m$n.h\""; done
        echo '#include <stdio.h>'
        echo 'int main(void) { unsigned seed = 1;'
        for ((n = 0; n < MODULES; n++)); do echo "struct m$n it$n; seed = m$n(&it$n, seed); printf(\"%u\\n\", seed);"; done
        echo 'return 0; }'
    } > src/main.c
    printf '#!/bin/sh\nset -e\n./program > tests/out\n[ $(wc -l < tests/out) = %d ]\n' $MODULES > tests/run
    chmod 755 tests/run
    cat > Makefile << 'EOF'
CFLAGS = -O1 -Wall -Werror -Iinclude -MMD -MP
OBJECTS = $(patsubst src/%.c,obj/%.o,$(filter-out src/main.c,$(sort $(wildcard src/*.c))))
all: program
program: obj/main.o libm.a ; $(CC) -o $@ $^
libm.a: $(OBJECTS) ; rm -f $@ && ar rcsD $@ $^
obj/%.o: src/%.c | obj ; $(CC) $(CFLAGS) -c -o $@ $<
obj: ; mkdir obj
check: program ; tests/run
install: all ; install -D -m 755 program $(DESTDIR)/bin/program && cp -p include/*.h $(DESTDIR)
clean: ; rm -rf obj program libm.a tests/out
-include obj/*.d
.PHONY: all check install clean
EOF
}
# What make runs in parallel is printed in any order.
compiled() { make -j4 "$@" 2>&1 | grep -v '^make' | sort; }
work() {
    project
    compiled
    make check | sort
    make # nothing is to be done
    # Times are whole seconds.
    sleep 1.1
    touch include/m7.h
    compiled
    sleep 1.1
    sed -i 's/1664525u/22695477u/' src/m3.c
    compiled check
    cksum tests/out
    make -s install DESTDIR="$PWD/../installed"
    ../installed/bin/program | cksum
    make -q && echo up to date
}
both work
same project
same installed
(cd "$MOUNTED/project" && make -s clean)
[ ! -e "$MOUNTED/project/obj" ] || die "make clean leaves something"
