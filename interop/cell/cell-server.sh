#!/bin/bash
# cell-server.sh NAME[@HOST] stop|kill|start   stop a machine's file server (OpenAFS's, or afar with all its roles) in order, or
# end it as a crash would, or start it again. Returns when it has ended, or has been told to start.
target=${1:-} && shift
set -- "${target%@*}" "$@"
. "$(dirname "${BASH_SOURCE[0]}")"/common.sh
set_host "$([[ $target == *@* ]] && echo "${target#*@}" || echo srv)"
[ -n "$(init_pid)" ] || die "no machine $HOST of a cell \"$NAME\" is up"
in_cell() { "$HERE"/cell-run.sh "$NAME@$HOST" "$@"; }
# The pids as they are in the machine.
pid_of() { in_cell cat /var/log/openafs/server.pid 2>/dev/null; }
wait_gone() {
    for _ in $(seq 1200); do
        in_cell test -e /proc/"$1" || return 0
        sleep 0.05
    done
    die "the server does not end"
}
case ${2:-} in
    stop | kill)
        if [ -e "$AT"/log/server.pid ]; then
            touch "$AT"/stays
            pid=$(pid_of)
            in_cell kill "$([ "$2" = stop ] && echo -TERM || echo -KILL)" "$pid"
            wait_gone "$pid"
        elif [ "$2" = stop ]; then
            in_cell bos shutdown "$ADDRESS" dafs -wait -localauth
        else
            # The bosserver starts it again by itself, after a salvage.
            in_cell pkill -KILL -x dafileserver
        fi
        ;;
    start)
        if [ -e "$AT"/log/server.pid ]; then
            touch "$AT"/start
        else
            in_cell bos startup "$ADDRESS" dafs -localauth
        fi
        ;;
    *) die "the second argument is stop, kill or start" ;;
esac
