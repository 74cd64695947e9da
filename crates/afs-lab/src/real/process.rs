//! Programs that tests run, and that have to end by themselves.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Waits for a program's end, for so long.
///
/// # Errors
///
/// The system's.
pub fn wait(child: &mut Child, patience: Duration) -> std::io::Result<Option<ExitStatus>> {
    let until = Instant::now() + patience;
    while Instant::now() < until {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(Duration::from_millis(5));
    }
    // Who waits may have had no processor for longer than the program.
    child.try_wait()
}

/// Runs a program to its end: what it says is read while it runs, since a pipe has no room for all of that.
///
/// # Panics
///
/// If it cannot be run, or does not end within so long.
pub fn run(command: &mut Command, patience: Duration) -> Output {
    fn read(mut from: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            from.read_to_end(&mut bytes).expect("a pipe");
            bytes
        })
    }
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a program that can be run");
    let stdout = read(child.stdout.take().expect("it is piped"));
    let stderr = read(child.stderr.take().expect("it is piped"));
    let Some(status) = wait(&mut child, patience).expect("a child") else {
        let _ = child.kill();
        panic!("it does not end: {command:?}");
    };
    let of = |reader: thread::JoinHandle<Vec<u8>>| reader.join().expect("it reads");
    Output { status, stdout: of(stdout), stderr: of(stderr) }
}
