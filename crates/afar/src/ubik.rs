//! The servers of a replicated database, as a client sees them: any answers questions, one of them takes changes. A call
//! goes from one to the next until one answers that can. What is called is for the callers.

use crate::calls::Caller;
use crate::codes::Code;
use rx::Connection;
use rxgen::Rpc;
use std::cell::RefCell;

/// A database of a cell.
pub(crate) struct Database {
    /// In the order in which they are asked.
    connections: Vec<Connection>,
    /// Which of them gave no answer the last time.
    is_down: RefCell<Vec<bool>>,
}

impl Database {
    /// A database by its servers, of which the first is asked first.
    pub(crate) fn new(connections: Vec<Connection>) -> Self {
        let is_down = RefCell::new(vec![false; connections.len()]);
        Self { connections, is_down }
    }

    /// Calls a procedure at one server after the other, first at those that are not known to be down, until one gives an
    /// answer that is no matter of the server alone. The error is the last one's.
    pub(crate) fn call<R: Rpc>(&self, caller: &Caller, args: &R) -> Result<R::Reply, Code> {
        let mut last = Code::UNOSERVERS;
        for with_those_down in [false, true] {
            for (index, connection) in self.connections.iter().enumerate() {
                if !with_those_down && self.is_down.borrow()[index] {
                    continue;
                }
                let answer = caller.call(connection, args);
                let (is_dead, goes_on) = match &answer {
                    Ok(_) => (false, false),
                    Err(code) => (code.0 < 0, is_of_the_server(*code)),
                };
                self.is_down.borrow_mut()[index] = is_dead;
                match answer {
                    Err(code) if goes_on => last = code,
                    answer => return answer,
                }
            }
        }
        Err(last)
    }
}

/// Whether another server may answer otherwise: this one did not answer at all, is not the one that takes changes, or is in
/// a minority.
fn is_of_the_server(code: Code) -> bool {
    code.0 < 0 || code == Code::UNOTSYNC || code == Code::UNOQUORUM
}
