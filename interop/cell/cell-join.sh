#!/bin/bash
# cell-join.sh NAME HOST [with=stock|PATH|none] [roles=file|databases] [flags="..."] [vice=DIR]   add a machine, HOST fs3 to
# fs9, with the address 10.88.0.3 to .9, to the cell that is up: OpenAFS's or ours, whatever the cell's other servers are.
# Its configuration and key are those that srv has then. Prints "ready ADDRESS" when the cell's VLDB has the file server;
# with roles=databases when vlserver and ptserver run, which serve if CellServDB names the machine on all of them; with=none
# starts no servers.
. "$(dirname "${BASH_SOURCE[0]}")"/common.sh
set_host "${2:-}"
[ "$HOST" != srv ] || die "srv comes with the cell"
shift 2
WITH=stock ROLES=file
export CELL_FLAGS= CELL_VICE=
for setting; do
    case $setting in
        with=*) WITH=${setting#*=} ;;
        roles=*) ROLES=${setting#*=} ;;
        flags=*) CELL_FLAGS=${setting#*=} ;;
        vice=*) CELL_VICE=${setting#*=} ;;
        *) die "no such setting: $setting" ;;
    esac
done
[ -d "$STATE"/srv/etc ] || die "no cell \"$NAME\" is up"
[ ! -e "$AT" ] || die "$HOST is there already"
failed() {
    show_logs
    stop_host
    rm -rf "$AT"
}
trap failed EXIT
trap 'exit 1' INT TERM HUP
start_host
wait_for_host
trap - EXIT
echo "ready $ADDRESS"
