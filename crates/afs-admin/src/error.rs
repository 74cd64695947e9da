//! The reasons why an operation on a cell did not succeed.

use std::fmt;

use afs_wire::abort;
use afs_wire::errno::Errno;
use rx::RpcError;
use rxgen::Abort;

/// The reason why a procedure gave no results. [`Error::code`] is the one number that OpenAFS's tools have for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// A server refused, or the only one that could be asked did not answer.
    Call(RpcError),
    /// A server of a database refused what an earlier attempt at the same call may have done: the refusal may be because of that.
    Repeated(RpcError),
    /// This end found it out, from what was asked for or from what servers have said.
    Local {
        /// The problem.
        what: String,
        /// The code that servers have for it.
        code: Abort,
    },
    /// The operation was to stop. What was half done has been undone, unless the operation says what is left.
    Cancelled,
    /// None of the servers of a database could do it.
    NoServer {
        /// The procedure.
        rpc: &'static str,
        /// The outcome of the call at each of them, in the order in which they were asked.
        failures: Vec<RpcError>,
        /// True if one of them may have carried out the call, since it gave no answer, or did not know itself.
        may_be_done: bool,
    },
}

/// What servers of a database say that do not know whether they have made a change, or whether it will yet be made: ours do if
/// etcd falls silent.
const UNDECIDED: [Abort; 2] = [abort::VL_IO, abort::PRDBFAIL];

/// True if this is the answer of a server of a database that does not know whether it has carried out the call.
pub(crate) fn is_undecided(error: &RpcError) -> bool {
    // A reply that nobody understands comes after the call was carried out.
    matches!(error, RpcError::Reply { .. }) || UNDECIDED.contains(&Abort(error.code().0))
}

impl Error {
    /// True if a call to the servers of a database may have been carried out, or may yet be, although it has failed.
    pub fn may_be_done(&self) -> bool {
        match self {
            Self::Call(error) => is_undecided(error),
            Self::Repeated(_) => true,
            Self::NoServer { may_be_done, .. } => *may_be_done,
            Self::Local { .. } | Self::Cancelled => false,
        }
    }

    /// The code that names it: a server's own, or a negative one of Rx. What a server has said counts more than that others
    /// are silent.
    pub fn code(&self) -> Abort {
        match self {
            Self::Call(error) | Self::Repeated(error) => Abort(error.code().0),
            Self::Local { code, .. } => *code,
            Self::Cancelled => Abort(Errno::EINTR.0),
            Self::NoServer { failures, .. } => {
                let codes = || failures.iter().rev().map(|failure| Abort(failure.code().0));
                codes().find(|code| code.0 > 0).or_else(|| codes().next()).unwrap_or(abort::UNOSERVERS)
            }
        }
    }
}

/// The name and the meaning of the code in an error of a call, to stand behind it: Rx, whose text that is, does not know AFS's codes.
fn meaning(error: &RpcError) -> String {
    let known = abort::find(Abort(error.code().0));
    known.map_or_else(String::new, |code| format!(" ({}: {})", code.name, code.sentence))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(error) | Self::Repeated(error) => write!(f, "{error}{}", meaning(error)),
            Self::Local { what, .. } => f.write_str(what),
            Self::Cancelled => f.write_str("interrupted"),
            Self::NoServer { rpc, failures, .. } if failures.is_empty() => {
                write!(f, "{rpc}: the cell has no database servers: check its line in CellServDB")
            }
            Self::NoServer { rpc, failures, may_be_done } => {
                write!(f, "{rpc}: none of the cell's database servers could do it: ")?;
                for (index, failure) in failures.iter().enumerate() {
                    let separator = if index == 0 { "" } else { "; " };
                    match failure {
                        RpcError::Call { source, .. } => {
                            write!(f, "{separator}{source}{}", meaning(failure))?
                        }
                        RpcError::Reply { .. } => write!(f, "{separator}{failure}")?,
                    }
                }
                if *may_be_done {
                    f.write_str("; one of them may have done it all the same")?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Call(error) | Self::Repeated(error) => Some(error),
            Self::Local { .. } | Self::Cancelled => None,
            Self::NoServer { failures, .. } => failures.last().map(|failure| failure as _),
        }
    }
}

impl From<RpcError> for Error {
    fn from(error: RpcError) -> Self {
        Self::Call(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rx::CallError;
    use rx_proto::abort::AbortCode;
    use rx_proto::ids::ServiceId;

    #[test]
    fn a_servers_code_is_told_with_what_it_means() {
        let refused = |code: Abort| {
            let source = CallError::Aborted {
                peer: "192.0.2.7:7002".parse().unwrap(),
                service: ServiceId(73),
                code: AbortCode(code.0),
            };
            RpcError::Call { rpc: "NameToID", source }
        };
        let code = abort::RXGK_BAD_TOKEN;
        let told = " (RXGK_BAD_TOKEN: the token is not for this server, or damaged)";
        let none = Error::NoServer { rpc: "NameToID", failures: vec![refused(code)], may_be_done: false };
        for error in [Error::Call(refused(code)), none] {
            assert!(error.to_string().ends_with(told), "{error}");
        }
        let unknown = Error::Call(refused(Abort(7_654_321))).to_string();
        assert!(unknown.ends_with("code 7654321"), "{unknown}");
    }
}
