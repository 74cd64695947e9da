#!/bin/bash
# cell-run.sh NAME COMMAND...   run a command where the servers are, with their configuration and key:
#   cell-run.sh it vos listvldb -localauth;  cell-run.sh it bos status 10.88.0.1 -localauth
. "$(dirname "${BASH_SOURCE[0]}")"/common.sh
shift
pid=$(init_pid)
[ -n "$pid" ] || die "no cell \"$NAME\" is up"
exec nsenter --target "$pid" --mount --uts --net --pid -- "$@"
