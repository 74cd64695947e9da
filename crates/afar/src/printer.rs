//! Output of a command: facts to the standard output, complaints to the standard error, in the order in which they come.

use crate::output;
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind, Write};

/// Collects what goes to the standard output until something must be seen.
pub(crate) struct Printer {
    /// The command that complains if the output cannot be written.
    command: &'static str,
    /// True if only JSON is said: text is for people, and a reader of JSON cannot read on behind it.
    is_only_json: bool,
    pending: RefCell<String>,
    has_failed: Cell<bool>,
}

/// Bytes of output kept at most, so that a list of any length costs no memory.
const PENDING_MAX: usize = 64 << 10;

impl Printer {
    /// Makes the printer of the command with this name.
    pub(crate) fn new(command: &'static str) -> Self {
        let (pending, has_failed) = (RefCell::default(), Cell::new(false));
        Self { command, is_only_json: false, pending, has_failed }
    }

    /// The same, which says nothing but JSON if that is wanted. Complaints are not concerned.
    pub(crate) fn only_json(self, is_wanted: bool) -> Self {
        Self { is_only_json: is_wanted, ..self }
    }

    /// Says something, with its newline.
    pub(crate) fn say(&self, text: &str) {
        if !self.is_only_json {
            self.append(text);
        }
    }

    fn append(&self, text: &str) {
        self.pending.borrow_mut().push_str(text);
        if self.pending.borrow().len() > PENDING_MAX {
            self.flush();
        }
    }

    /// Says one JSON value.
    pub(crate) fn say_json(&self, value: &Value) {
        self.append(&format!("{:#}\n", output::lossless(value.clone())));
    }

    /// Complains, with the newline, behind all that was said before.
    pub(crate) fn complain(&self, text: &str) {
        self.flush();
        // Where it cannot be written there is nobody to be told.
        let _ = io::stderr().write_all(&output::bytes_of(text));
    }

    /// Lets be seen what was said.
    pub(crate) fn flush(&self) {
        let text = std::mem::take(&mut *self.pending.borrow_mut());
        if text.is_empty() || self.has_failed.get() {
            return;
        }
        if let Err(error) = output::write(&text) {
            self.has_failed.set(true);
            if error.kind() != ErrorKind::BrokenPipe {
                eprintln!("{}: cannot write the output: {error}", self.command);
            }
        }
    }

    /// The exit status: `status`, unless not all could be written.
    pub(crate) fn finish(&self, status: u8) -> u8 {
        self.flush();
        if status == 0 && self.has_failed.get() { 1 } else { status }
    }
}

/// Says what is formatted.
macro_rules! say {
    ($printer:expr, $($format:tt)*) => { $printer.say(&format!($($format)*)) };
}

/// Complains what is formatted.
macro_rules! complain {
    ($printer:expr, $($format:tt)*) => { $printer.complain(&format!($($format)*)) };
}

pub(crate) use {complain, say};
