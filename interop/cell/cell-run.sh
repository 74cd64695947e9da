#!/bin/bash
# cell-run.sh NAME[@HOST] COMMAND...   run a command where servers of the cell are, with their configuration and key;
# HOST is srv unless said otherwise:
#   cell-run.sh it vos listvldb -localauth;  cell-run.sh it@fs3 bos status 10.88.0.3 -localauth
target=${1:-} && shift
set -- "${target%@*}" "$@"
. "$(dirname "${BASH_SOURCE[0]}")"/common.sh
set_host "$([[ $target == *@* ]] && echo "${target#*@}" || echo srv)"
shift
pid=$(init_pid)
[ -n "$pid" ] || die "no machine $HOST of a cell \"$NAME\" is up"
exec "${IN_MACHINE[@]}" "$pid" "$@"
