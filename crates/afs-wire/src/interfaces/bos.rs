//! BOZO, what `bos` asks of a basic overseer server (Overseer notes 2).

use crate::ids::AfsTime;
use rxgen::xdr::{CharVec, XdrString};
use rxgen::{interface, wire_enum, wire_struct};

/// Longest string, in bytes (`BOZO_BSSIZE`).
pub const BOZO_BSSIZE: usize = 256;
/// Names, commands, paths.
pub type BozoString = XdrString<BOZO_BSSIZE>;

wire_enum! {
    /// The state that a process is in, or should be in.
    enum BnodeStatus: i32 {
        /// Stopped.
        0 SHUTDOWN;
        /// Running.
        1 NORMAL;
        /// It is on its way to stop.
        2 SHUTTING_DOWN;
        /// It is on its way to run.
        3 STARTING_UP;
    }

    /// The kinds of restart times.
    enum RestartTimeKind: i32 {
        /// The time when everything is restarted.
        1 GENERAL;
        /// The time when processes with a new binary are restarted.
        2 NEW_BINARY;
    }
}

wire_bits! {
    /// Troubles of a process.
    BnodeFlags(i32) {
        /// There is a core file.
        1 HAS_CORE;
        /// Stopped for it failed too often.
        2 ERROR_STOP;
        /// A folder has the wrong mode bits.
        4 BAD_DIR_ACCESS;
    }

    /// The fields of a [`BozoNetKTime`] that count.
    KTimeMask(i32) {
        /// `hour`.
        1 HOUR;
        /// `minute`.
        2 MINUTE;
        /// `second`.
        4 SECOND;
        /// `day`.
        8 DAY;
        /// Never.
        0x10 NEVER;
        /// Now.
        0x20 NOW;
    }
}

wire_struct! {
    /// A time of the day or week.
    #[derive(Copy)]
    struct BozoNetKTime {
        /// The fields that count.
        mask: KTimeMask,
        /// Hour.
        hour: i16,
        /// Minute.
        minute: i16,
        /// Second.
        second: i16,
        /// Day of the week; 0 is Sunday.
        day: i16,
    }

    /// A key of the old kind.
    #[derive(Copy)]
    struct BozoKey {
        /// Its bytes.
        data: CharVec<8>,
    }

    /// The facts about a key that may be told.
    #[derive(Copy)]
    struct BozoKeyInfo {
        /// The time when it was changed.
        mod_sec: AfsTime,
        /// Likewise.
        mod_usec: i32,
        /// Its checksum.
        key_checksum: u32,
        /// 0.
        spare2: i32,
    }

    /// State of a process, 68 bytes.
    #[derive(Copy)]
    struct BozoStatus {
        /// The status that it is to have now.
        goal: BnodeStatus,
        /// The status that it is to have after a restart.
        file_goal: BnodeStatus,
        /// The time when it was started.
        proc_start_time: AfsTime,
        /// The number of starts.
        proc_starts: i32,
        /// The time when it ended last.
        last_any_exit: AfsTime,
        /// The time when it failed last.
        last_error_exit: AfsTime,
        /// The code of that failure.
        error_code: i32,
        /// The signal of that failure.
        error_signal: i32,
        /// Its troubles.
        flags: BnodeFlags,
        /// 0.
        spare: [i32; 8],
    }
}

interface! {
    /// Procedures that `bos` calls on a basic overseer server.
    Bozo on service 1 port 7007 {
        /// Adds a process.
         80 CreateBnode (kind: BozoString, instance: BozoString, p1: BozoString, p2: BozoString, p3: BozoString,
                         p4: BozoString, p5: BozoString, p6: BozoString);
        /// Removes a process.
         81 DeleteBnode (instance: BozoString);
        /// Says what a process is to do, now and after a restart.
         82 SetStatus (instance: BozoString, status: BnodeStatus);
        /// Tells the status of a process.
         83 GetStatus (instance: BozoString) -> (status: BnodeStatus, description: BozoString);
        /// A process, by index.
         84 EnumerateInstance (index: i32) -> (name: BozoString);
        /// State of a process.
         85 GetInstanceInfo (instance: BozoString) -> (kind: BozoString, status: BozoStatus);
        /// A command of a process.
         86 GetInstanceParm (instance: BozoString, num: i32) -> (parm: BozoString);
        /// Adds a superuser.
         87 AddSUser (name: BozoString);
        /// Removes a superuser.
         88 DeleteSUser (name: BozoString);
        /// A superuser, by index.
         89 ListSUsers (index: i32) -> (name: BozoString);
        /// A key, by index.
         90 ListKeys (index: i32) -> (kvno: i32, key: BozoKey, info: BozoKeyInfo);
        /// Adds a key.
         91 AddKey (kvno: i32, key: BozoKey);
        /// Removes a key.
         92 DeleteKey (kvno: i32);
        /// Sets the cell's name.
         93 SetCellName (name: BozoString);
        /// The cell's name.
         94 GetCellName () -> (name: BozoString);
        /// A database server, by index.
         95 GetCellHost (index: u32) -> (name: BozoString);
        /// Adds a database server.
         96 AddCellHost (name: BozoString);
        /// Removes a database server.
         97 DeleteCellHost (name: BozoString);
        /// Says what a process is to do now.
         98 SetTStatus (instance: BozoString, status: BnodeStatus);
        /// Stops all processes.
         99 ShutdownAll ();
        /// Restarts all processes.
        100 RestartAll ();
        /// Starts all processes.
        101 StartupAll ();
        /// Turns authorization off or on.
        102 SetNoAuthFlag (flag: i32);
        /// Restarts the overseer.
        103 ReBozo ();
        /// Restarts a process.
        104 Restart (instance: BozoString);
        /// Installs a binary.
        105 Install (path: BozoString, size: i32, flags: i32, date: AfsTime) split from_client;
        /// Puts the binary before it back.
        106 UnInstall (path: BozoString);
        /// Tells when a binary and those before it were made.
        107 GetDates (path: BozoString) -> (new_time: AfsTime, bak_time: AfsTime, old_time: AfsTime);
        /// Runs a command.
        108 Exec (cmd: BozoString);
        /// Removes old binaries and core files.
        109 Prune (flags: i32);
        /// Sets a restart time.
        110 SetRestartTime (kind: RestartTimeKind, time: BozoNetKTime);
        /// A restart time.
        111 GetRestartTime (kind: RestartTimeKind) -> (time: BozoNetKTime);
        /// A log: its bytes and a NUL.
        112 GetLog (name: BozoString) split from_server;
        /// Waits until every process does what it is to do.
        113 WaitAll ();
        /// More of a process's state.
        114 GetInstanceStrings (instance: BozoString)
            -> (error_name: BozoString, spare1: BozoString, spare2: BozoString, spare3: BozoString);
        /// Tells whether it is restricted.
        115 GetRestrictedMode () -> (mode: i32);
        /// Makes it restricted, or not.
        116 SetRestrictedMode (mode: i32);
    }
}
