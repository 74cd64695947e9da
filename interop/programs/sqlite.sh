#!/bin/bash
# sqlite.sh MOUNTED LOCAL   sqlite3 in each of its journal modes, by one and by four writers at once.
. "$(dirname "${BASH_SOURCE[0]}")"/common.sh

rows='with recursive n(i) as (select 1 union all select i + 1 from n where i < 3000)'
work() {
    for mode in delete truncate persist wal; do
        sqlite3 $mode.db "pragma journal_mode=$mode; create table t(a integer primary key, b text);
            insert into t $rows select i, hex(i * i) from n;"
        sqlite3 $mode.db "update t set b = b || a where a % 3 = 0; delete from t where a % 5 = 0; create index x on t(b);
            begin; delete from t; rollback; vacuum;"
        for writer in 1 2 3 4; do
            for step in $(seq 8); do
                sqlite3 -cmd '.timeout 600000' $mode.db "insert into t values(10000 * $writer + $step, 'writer');"
            done &
        done
        wait
        sqlite3 $mode.db "pragma integrity_check; select count(*), sum(a), sum(length(b)) from t;"
        sqlite3 $mode.db .dump | sort | cksum
    done
}
both work
# What one wrote there, another reads here.
cp "$MOUNTED/delete.db" "$LOCAL/copy.db"
cmp <(sqlite3 "$LOCAL/copy.db" .dump) <(sqlite3 "$MOUNTED/delete.db" .dump)
