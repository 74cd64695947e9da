//! The network between our side and the stock one: the loopback interface, or an emulated line between two namespaces.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use linkem::Link;

use crate::lab::Lab;
use crate::suite::Trouble;

/// The round trip of the long lines: from one end of a small country to the other and back.
pub const ROUND_TRIP: Duration = Duration::from_micros(12_500);

/// Loss on the lossy line, in each direction.
const LOSS: f64 = 0.01;

/// A kind of network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One machine.
    Loopback,
    /// 12.5 ms, nothing lost.
    Long,
    /// 12.5 ms, 1 % lost in each direction.
    Lossy,
}

impl Kind {
    /// Its name in those of cases.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Long => "long",
            Self::Lossy => "lossy",
        }
    }
}

/// A network with our side at one end, the stock one at the other.
pub struct Network {
    link: Option<Arc<Link>>,
}

impl Network {
    /// Makes one for the caller alone.
    ///
    /// # Errors
    ///
    /// Where links cannot be made, or this one could not.
    pub fn new(lab: &Lab, kind: Kind) -> Result<Self, Trouble> {
        if kind == Kind::Loopback {
            return Ok(Self { link: None });
        }
        lab.links()?;
        let loss = if kind == Kind::Lossy { LOSS } else { 0.0 };
        let link = Link::builder().rtt(ROUND_TRIP).loss(loss).start().map_err(|error| error.to_string())?;
        Ok(Self { link: Some(Arc::new(link)) })
    }

    /// The one that all share who do not cut it: a link takes a while to make and to remove, and a thread.
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub fn shared(lab: &Lab, kind: Kind) -> Result<Self, Trouble> {
        let mut links = lab.shared_links();
        if let Some((_, link)) = links.iter().find(|(shared, _)| *shared == kind) {
            return Ok(Self { link: Some(Arc::clone(link)) });
        }
        let network = Self::new(lab, kind)?;
        links.extend(network.link.as_ref().map(|link| (kind, Arc::clone(link))));
        Ok(network)
    }

    /// Our address, with this port.
    pub fn ours(&self, port: u16) -> SocketAddr {
        (if self.link.is_some() { linkem::ADDRESS_A } else { Ipv4Addr::LOCALHOST }, port).into()
    }

    /// The stock side's address, with this port.
    pub fn stock(&self, port: u16) -> SocketAddr {
        (if self.link.is_some() { linkem::ADDRESS_B } else { Ipv4Addr::LOCALHOST }, port).into()
    }

    /// Runs work at our end, in a tokio runtime of its own.
    ///
    /// # Errors
    ///
    /// Its own, or when there is no runtime to be had.
    pub fn at_ours<T: Send>(
        &self,
        work: impl AsyncFnOnce() -> Result<T, Trouble> + Send,
    ) -> Result<T, Trouble> {
        let run = || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
            runtime.map_err(|error| format!("cannot start threads: {error}"))?.block_on(work())
        };
        match &self.link {
            None => run(),
            Some(link) => link.a().run_in(run).map_err(|error| error.to_string())?,
        }
    }

    /// A command at the stock end.
    pub fn stock_command(&self, program: &Path) -> Command {
        match &self.link {
            None => Command::new(program),
            Some(link) => link.b().command(program),
        }
    }

    /// Cuts the line, or mends it.
    ///
    /// # Errors
    ///
    /// When this is the loopback interface, or the emulator has ended.
    pub fn set_cut(&self, cut: bool) -> Result<(), Trouble> {
        let link = self.link.as_ref().ok_or_else(|| "the loopback interface cannot be cut".to_owned())?;
        Ok(link.set(|direction| direction.blackout = cut).map_err(|error| error.to_string())?)
    }
}
