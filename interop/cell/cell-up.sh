#!/bin/bash
# cell-up.sh NAME [SETTING=VALUE]...   start the servers of a cell, one of each: an OpenAFS cell's bosserver,
# vlserver, ptserver, dafileserver, davolserver, or ours. Prints "ready ADDRESS" when they answer. Settings:
#   with=stock|PATH|none     OpenAFS's from Debian (default), or the program afar, as "afar server", or no servers
#   flags="-L -p 128"        of dafileserver, or of afar server
#   vice=DIR                 the partition's folder; default is one that goes with the cell
# See README.md.
. "$(dirname "${BASH_SOURCE[0]}")"/common.sh
shift
WITH=stock ROLES=all
export CELL_FLAGS= CELL_VICE=
for setting; do
    case $setting in
        with=*) WITH=${setting#*=} ;;
        flags=*) CELL_FLAGS=${setting#*=} ;;
        vice=*) CELL_VICE=${setting#*=} ;;
        *) die "no such setting: $setting" ;;
    esac
done
set_host srv
for program in bosserver asetkey rxdebug vos unshare nsenter ip setsid \
    "$LIBEXEC"/{vlserver,ptserver,dafileserver,davolserver,salvageserver,dasalvager}; do
    command -v "$program" > /dev/null \
        || die "$program is missing: install openafs-fileserver openafs-dbserver openafs-krb5 openafs-client iproute2 util-linux"
done
[ "$WITH" = stock ] || [ "$WITH" = none ] || [ -x "$WITH" ] || die "with=$WITH is neither \"stock\" nor \"none\" nor a program"
[ ! -e "$STATE" ] && [ ! -e /run/netns/"$NS" ] && [ ! -e /run/netns/"$CLI" ] \
    || die "a cell \"$NAME\" is up already, or was not taken down: cell-down.sh $NAME"

failed() {
    show_logs
    "$HERE"/cell-down.sh "$NAME" >&2 || true
}
trap failed EXIT
trap 'exit 1' INT TERM HUP

mkdir -m 755 "$STATE"
ip netns add "$CLI"
ip -n "$CLI" link set lo up
ip -n "$CLI" link add cell0 type bridge
ip -n "$CLI" addr add $CLI_ADDR/24 dev cell0
ip -n "$CLI" link set cell0 up
start_host
wait_for_host
trap - EXIT
echo "ready $ADDRESS"
