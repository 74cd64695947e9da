//! The simple application on each node: it sends what a [`Job`] says, and answers such calls. All data are a pattern, which is checked.

use super::{JOB_HEADER, Job, Node, Running, ms, pattern, pattern_bytes};
use rx_proto::CallError;
use rx_proto::abort::AbortCode;
use rx_proto::endpoint::{CallHandle, Endpoint, Read};
use rx_proto::time::Instant;
use std::time::Duration;

/// The bytes that an application writes at a time.
const PIECE: usize = 64 << 10;

impl Node {
    /// Goes on with a call of its own.
    pub(super) fn step_job(&mut self, now: Instant, index: usize) {
        let running = &mut self.jobs[index];
        let call = match running.call {
            Some(call) => call,
            None => match self.endpoint.open(now, running.connection) {
                Ok(Some(call)) => {
                    let mut header = Vec::new();
                    header.extend_from_slice(&(running.job.receive as u64).to_be_bytes());
                    header.extend_from_slice(&running.job.abort.to_be_bytes());
                    header.extend_from_slice(&(running.job.think.as_millis() as u32).to_be_bytes());
                    self.endpoint.write(now, call, header.into()).expect("a new call takes a write");
                    running.call = Some(call);
                    call
                }
                Ok(None) => return,
                Err(error) => {
                    (running.result, running.ended) = (Some(Err(error)), Some(now));
                    return;
                }
            },
        };
        let result =
            Self::drive(&mut self.endpoint, running, now, call, self.reads_after, self.reads_per_step);
        if let Some(result) = result {
            (running.result, running.ended) = (Some(result), Some(now));
            self.endpoint.release(now, call);
        }
    }

    fn drive(
        endpoint: &mut Endpoint,
        running: &mut Running,
        now: Instant,
        call: CallHandle,
        reads_after: Instant,
        reads: usize,
    ) -> Option<Result<(), CallError>> {
        if let Some(error) = endpoint.call_error(call) {
            return Some(Err(error));
        }
        let limit = endpoint.config().send_buffer;
        while !running.finished {
            if running.written == running.job.send {
                running.finished = true;
                if let Err(error) = endpoint.finish(now, call) {
                    return Some(Err(error));
                }
                break;
            }
            let len = PIECE.min(running.job.send - running.written).min(limit);
            match endpoint.write(now, call, pattern_bytes(running.written, len)) {
                Ok(goes_on) => {
                    running.written += len;
                    if !goes_on {
                        break;
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
        if now < reads_after {
            return None;
        }
        for _ in 0..reads {
            match endpoint.read(now, call) {
                Ok(Read::Data(bytes)) => {
                    for (i, byte) in bytes.iter().enumerate() {
                        assert_eq!(
                            *byte,
                            pattern(running.received + i),
                            "reply byte {}",
                            running.received + i
                        );
                    }
                    running.received += bytes.len();
                    if running.progress.last().is_none_or(|(at, _)| now.since(*at) >= ms(1)) {
                        running.progress.push((now, running.received));
                    }
                }
                Ok(Read::End) => {
                    assert_eq!(running.received, running.job.receive, "the reply is whole");
                    return Some(Ok(()));
                }
                Ok(Read::Blocked) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
        None
    }

    /// Goes on with a call that it answers.
    pub(super) fn step_serving(&mut self, now: Instant, call: CallHandle) {
        if now < self.reads_after {
            return;
        }
        let Some(s) = self.serving.get_mut(&call) else { return };
        for _ in 0..self.reads_per_step {
            if s.request_done {
                break;
            }
            match self.endpoint.read(now, call) {
                Ok(Read::Data(bytes)) => {
                    let header = JOB_HEADER.saturating_sub(s.request.len()).min(bytes.len());
                    s.request.extend_from_slice(&bytes[..header]);
                    for byte in &bytes[header..] {
                        assert_eq!(*byte, pattern(s.request_len), "request byte {}", s.request_len);
                        s.request_len += 1;
                    }
                }
                Ok(Read::End) => {
                    let word = |a: usize, b: usize| {
                        s.request[a..b].iter().fold(0u64, |n, byte| n << 8 | u64::from(*byte))
                    };
                    let think = ms(word(12, 16));
                    s.job = Some(Job {
                        send: s.request_len,
                        receive: word(0, 8) as usize,
                        abort: word(8, 12) as u32 as i32,
                        think,
                    });
                    s.think_until = (think > Duration::ZERO).then(|| now + think);
                    s.request_done = true;
                }
                Ok(Read::Blocked) => return,
                Err(_) => return self.forget(now, call),
            }
        }
        let Some(job) = s.job else { return };
        if s.think_until.is_some_and(|t| t > now) {
            return;
        }
        s.think_until = None;
        if job.abort != 0 {
            self.endpoint.abort(now, call, AbortCode(job.abort));
            return self.forget(now, call);
        }
        while !s.finished {
            if s.written == job.receive {
                s.finished = true;
                self.served += 1;
                if self.endpoint.finish(now, call).is_err() {
                    return self.forget(now, call);
                }
                break;
            }
            let len = PIECE.min(job.receive - s.written);
            match self.endpoint.write(now, call, pattern_bytes(s.written, len)) {
                Ok(goes_on) => {
                    s.written += len;
                    if !goes_on {
                        break;
                    }
                }
                Err(_) => return self.forget(now, call),
            }
        }
    }

    fn forget(&mut self, now: Instant, call: CallHandle) {
        self.serving.remove(&call);
        self.endpoint.release(now, call);
    }
}
