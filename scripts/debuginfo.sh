#!/bin/bash
# debuginfo.sh PROGRAM   moves the debug information of a program into PROGRAM.debug beside it, where backtraces and debuggers find it.
#
# The program is a third of its size without. Does nothing where that was done before.
set -euo pipefail
program=$1
readelf --section-headers --wide "$program" | grep ' \.gnu_debuglink ' > /dev/null && exit
new=$program.stripped
rm -f "$new"
objcopy --only-keep-debug "$program" "$program.debug"
objcopy --strip-all --add-gnu-debuglink="$program.debug" "$program" "$new"
# In one step, and not through a hard link that cargo has to the program in another folder.
mv "$new" "$program"
