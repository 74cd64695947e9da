#!/bin/bash
# inside.sh NAME ADDRESS CELL   (run by cell-up.sh as process 1 of the cell's namespaces)
# Covers OpenAFS's fixed paths with the cell's own directories, writes its configuration, and
# runs bosserver, which runs the rest.
set -eu
NAME=$1 ADDRESS=$2 CELL=$3
STATE=/run/afar-cell-$NAME
hostname "$NAME"
mkdir -p "$STATE"/{etc/server,lib/db,lib/local,log}
chmod 700 "$STATE"/lib/{db,local}
printf '127.0.0.1 localhost\n%s %s\n' "$ADDRESS" "$NAME" > "$STATE"/hosts
mount --bind "$STATE"/etc /etc/openafs
mount --bind "$STATE"/lib /var/lib/openafs
mount --bind "$STATE"/log /var/log/openafs
mount --bind "$STATE"/hosts /etc/hosts

for d in /etc/openafs /etc/openafs/server; do
    echo "$CELL" > $d/ThisCell
    printf '>%s\n%s #%s\n' "$CELL" "$ADDRESS" "$NAME" > $d/CellServDB
done
echo admin > /etc/openafs/server/UserList
echo "$ADDRESS" > /var/lib/openafs/local/NetInfo
# A key nobody else knows, good for -localauth; no Kerberos realm stands behind it. asetkey takes
# such keys (aes256-cts, number 18) only from a keytab, so write one: format 0x0502, then one entry.
counted() { printf '%04x%s' ${#1} "$(printf %s "$1" | od -An -tx1 | tr -d ' \n')"; } # length, text
REALM=INTEROP.TEST SERVICE=afs
entry=0002$(counted $REALM)$(counted $SERVICE)$(counted "$CELL") # two name components
entry+=0000000100000000                                          # name type, time
entry+=0100120020$(od -An -tx1 -N32 /dev/urandom | tr -d ' \n')  # version 1, type 18, 32 bytes
keytab=$(printf '0502%08x%s' $((${#entry} / 2)) "$entry")
(umask 077 && printf "$(sed 's/../\\x&/g' <<< "$keytab")" > "$STATE"/keytab)
asetkey add rxkad_krb5 1 18 "$STATE"/keytab $SERVICE/"$CELL"@$REALM
rm "$STATE"/keytab

L=/usr/lib/openafs
cat > /etc/openafs/BosConfig <<B
restrictmode 0
restarttime 16 0 0 0 0
checkbintime 16 0 0 0 0
bnode simple ptserver 1
parm $L/ptserver
end
bnode simple vlserver 1
parm $L/vlserver
end
bnode dafs dafs 0
parm $L/dafileserver
parm $L/davolserver
parm $L/salvageserver
parm $L/dasalvager
end
B
# Not exec: as process 1 bosserver would have to look after every orphan.
bosserver -nofork &
bosserver=$!

# The fileserver comes after the databases: one that finds no ptserver sleeps for 30 s.
for _ in $(seq 300); do
    if vos listvldb -localauth > /dev/null 2>&1 && pts listentries -localauth > /dev/null 2>&1; then
        bos start "$ADDRESS" dafs -localauth
        break
    fi
    sleep 0.1
done
wait $bosserver
