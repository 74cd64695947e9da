//! `interop/gss-peer`: MIT Kerberos's GSS-API as one end of a context, which does a step at a time. Its realm is the caller's.

use std::io::Write;
use std::process::{Command, Stdio};

use afs_lab::real::process::Process;

use crate::process::hex;
use crate::suite::Trouble;

/// The program; dropped, it ends.
#[derive(Debug)]
pub struct GssPeer {
    process: Process,
}

impl GssPeer {
    /// Starts it, by a command that has its role and the service in it.
    ///
    /// # Errors
    ///
    /// When it does not start: an acceptor without a key, say.
    pub fn start(command: &mut Command) -> Result<Self, Trouble> {
        Ok(Self { process: Process::saying(command.stdin(Stdio::piped()), "ready")? })
    }

    /// Does a step, which has to succeed. Returns the words of the answer.
    ///
    /// # Errors
    ///
    /// The library's words, if it refuses.
    pub fn step(&mut self, verb: &str, words: &[&[u8]]) -> Result<Vec<Vec<u8>>, Trouble> {
        let words: Vec<String> = words.iter().map(|word| hex(word)).collect();
        self.ask(verb, &words)?.map_err(|why| Trouble::Failed(format!("MIT's library to {verb}: {why}")))
    }

    /// Tries a step, after which the peer is as before. Returns the words of the answer, and `None` if the library refuses.
    ///
    /// # Errors
    ///
    /// When the program gives no answer.
    pub fn attempt(&mut self, verb: &str, words: &[&[u8]]) -> Result<Option<Vec<Vec<u8>>>, Trouble> {
        let words: Vec<String> = words.iter().map(|word| hex(word)).collect();
        Ok(self.ask(&format!("?{verb}"), &words)?.ok())
    }

    /// The bytes that both ends make of a seed.
    ///
    /// # Errors
    ///
    /// As [`Self::step`].
    pub fn pseudo_random(&mut self, seed: &[u8], len: usize) -> Result<Vec<u8>, Trouble> {
        let answer = self.ask("random", &[hex(seed), len.to_string()])?;
        answer.map(|words| words.concat()).map_err(|why| Trouble::Failed(format!("pseudo-random: {why}")))
    }

    fn ask(&mut self, verb: &str, words: &[String]) -> Result<Result<Vec<Vec<u8>>, String>, Trouble> {
        let line = [&[verb.to_owned()], words].concat().join(" ") + "\n";
        let input = self.process.child.stdin.as_mut().expect("a pipe");
        input.write_all(line.as_bytes()).map_err(|error| format!("{}: {error}", self.process.name()))?;
        let answer = self.process.next_line();
        let mut parts = answer.split(' ');
        match parts.next() {
            Some("ok") => {
                Ok(Ok(parts.map(bytes).collect::<Option<_>>().ok_or("an answer not in hex".to_owned())?))
            }
            Some("no") => Ok(Err(answer)),
            _ => Err(Trouble::Failed(format!("{} to {verb}: {answer:?}", self.process.name()))),
        }
    }
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let pairs = hex.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}
