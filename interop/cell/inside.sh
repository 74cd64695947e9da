#!/bin/bash
# inside.sh NAME HOST ADDRESS WITH ROLES   (run by the other scripts as process 1 of a machine's namespaces)
# Gives the machine a root folder of its own, in which OpenAFS's fixed paths are the cell's own folders and which has a
# /vicepa, writes the configuration, and runs the servers.
. "$(dirname "${BASH_SOURCE[0]}")"/common.sh
set_host "$2"
WITH=$4 ROLES=$5
FIRST=$NETWORK.1
[ "$WITH" = stock ] || [ "$WITH" = none ] || WITH=$(realpath "$WITH")

if [ -z "${CELL_INSIDE:-}" ]; then
    hostname "$HOST" # the same in all cells, as tools print it
    mkdir -p "$AT"/{etc/server,lib/db,lib/local,log,tree,afar} "${CELL_VICE:=$AT/vicepa}"
    chmod 700 "$AT"/lib/{db,local}
    touch "$CELL_VICE"/AlwaysAttach # for OpenAFS's: a folder, not a disk
    {
        echo "127.0.0.1 localhost"
        for n in 1:srv {3..9}; do
            echo "$NETWORK.${n%%:*} $([ "$n" = 1:srv ] && echo srv || echo "fs$n")"
        done
    } > "$AT"/hosts
    # A partition is a folder in /, which this machine's own should not get.
    for entry in /*; do
        name=${entry#/}
        case $name in vicep*) continue ;; esac
        if [ -L "$entry" ]; then
            cp -a "$entry" "$AT"/tree/
        elif [ -d "$entry" ]; then
            mkdir "$AT/tree/$name"
            mount --rbind "$entry" "$AT/tree/$name"
        fi
    done
    mkdir "$AT"/tree/vicepa
    mount --bind "$CELL_VICE" "$AT"/tree/vicepa
    mount --bind "$AT"/etc "$AT"/tree/etc/openafs
    mount --bind "$AT"/lib "$AT"/tree/var/lib/openafs
    mount --bind "$AT"/log "$AT"/tree/var/log/openafs
    mount --bind "$AT"/hosts "$AT"/tree/etc/hosts
    CELL_INSIDE=yes exec chroot "$AT"/tree "$HERE"/inside.sh "$@"
fi

echo admin > /etc/openafs/server/UserList
echo "$ADDRESS" > /var/lib/openafs/local/NetInfo
if [ "$HOST" = srv ]; then
    for d in /etc/openafs /etc/openafs/server; do
        echo "$CELL" > $d/ThisCell
        printf '>%s\n%s #srv\n' "$CELL" "$FIRST" > $d/CellServDB
    done
    # A key nobody else knows, good for -localauth; no Kerberos realm stands behind it. asetkey takes
    # such keys (aes256-cts, number 18) only from a keytab, so write one: format 0x0502, then one entry.
    counted() { printf '%04x%s' ${#1} "$(printf %s "$1" | od -An -tx1 | tr -d ' \n')"; } # length, text
    REALM=INTEROP.TEST SERVICE=afs
    entry=0002$(counted $REALM)$(counted $SERVICE)$(counted "$CELL") # two name components
    entry+=0000000100000000                                          # name type, time
    entry+=0100120020$(od -An -tx1 -N32 /dev/urandom | tr -d ' \n')  # version 1, type 18, 32 bytes
    keytab=$(printf '0502%08x%s' $((${#entry} / 2)) "$entry")
    (umask 077 && printf "$(sed 's/../\\x&/g' <<< "$keytab")" > "$AT"/keytab)
    asetkey add rxkad_krb5 1 18 "$AT"/keytab $SERVICE/"$CELL"@$REALM
    rm "$AT"/keytab
else
    for d in etc etc/server; do
        cp "$STATE"/srv/$d/{ThisCell,CellServDB} /etc/openafs/"${d#etc}"
    done
    cp -p "$STATE"/srv/etc/server/KeyFileExt /etc/openafs/server/
fi

if [ "$WITH" = none ]; then
    touch "$AT"/idle
    # Not exec: process 1 has to look after every orphan.
    sleep infinity &
    wait $!
    exit
fi

if [ "$WITH" != stock ]; then
    roles=file,vol,vl,pt,bos
    [ "$ROLES" != file ] || roles=file,vol,bos
    [ "$ROLES" != databases ] || roles=vl,pt,bos
    # The configuration folder of OpenAFS is that of our state.
    mkdir -p "$AT"/afar/etc
    mount --bind /etc/openafs "$AT"/afar/etc
    serve() {
        # shellcheck disable=SC2086 # flags are several words
        "$WITH" server --state "$AT"/afar --roles $roles --bind "$ADDRESS" ${CELL_FLAGS:-} >> /var/log/openafs/afar 2>&1 &
        echo $! > /var/log/openafs/server.pid
        wait $! || true
    }
    serve
    # cell-server.sh stops it and starts it again.
    while [ -e "$AT"/stays ]; do
        until [ -e "$AT"/start ]; do sleep 0.005; done
        rm "$AT"/start
        serve
    done
    exit
fi

{
    echo "restrictmode 0"
    echo "restarttime 16 0 0 0 0"
    echo "checkbintime 16 0 0 0 0"
    if [ "$ROLES" != file ]; then
        printf 'bnode simple ptserver 1\nparm %s\nend\n' "$LIBEXEC/ptserver"
        printf 'bnode simple vlserver 1\nparm %s\nend\n' "$LIBEXEC/vlserver"
    fi
    if [ "$ROLES" != databases ]; then
        printf 'bnode dafs dafs 0\nparm %s\nparm %s\nparm %s\nparm %s\nend\n' \
            "$LIBEXEC/dafileserver${CELL_FLAGS:+ $CELL_FLAGS}" "$LIBEXEC/davolserver" "$LIBEXEC/salvageserver" "$LIBEXEC/dasalvager"
    fi
} > /etc/openafs/BosConfig
# Not exec: as process 1 bosserver would have to look after every orphan.
bosserver -nofork &
bosserver=$!

# The fileserver comes after the databases: one that finds no ptserver sleeps for 30 s. Where these are on another machine, the bosserver
# here may not listen yet.
for _ in $([ "$ROLES" = databases ] || seq 1000); do
    if vos listvldb -localauth > /dev/null 2>&1 && pts listentries -localauth > /dev/null 2>&1 &&
        bos start "$ADDRESS" dafs -localauth; then
        break
    fi
    sleep 0.1
done
wait $bosserver
