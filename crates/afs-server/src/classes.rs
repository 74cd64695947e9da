//! The security classes that the services of this server take calls by, all with the same keys: none, rxkad, and rxgk in both its
//! dialects.

use std::sync::Arc;

use afs_fileserver::FileServer;
use rx_proto::security::{Null, ServerSecurity};
use rx_security::keys::KeyType;
use rx_security::rxgk::{self, Dialect};
use rx_security::time::Clock;
use rx_security::{KeySet, Level, rxkad};
use rxgen::xdr::Uuid;

/// The classes, and the keys that they use. Clones share the keys.
#[derive(Debug, Clone)]
pub(crate) struct Classes {
    rxkad: rxkad::Server,
    rxgk: rxgk::Server,
}

impl Classes {
    /// Makes the classes of a server. For rxgk, the names of callers are read by the same rules as for rxkad. The seed is of good
    /// randomness.
    pub(crate) fn new(
        keys: KeySet,
        rxkad: rxkad::ServerOptions,
        rxgk_min_level: Level,
        clock: Clock,
        seed: [u8; 32],
    ) -> Self {
        let (realms, names) = (rxkad.realms.clone(), rxkad.names);
        let rxgk = rxgk::ServerOptions { min_level: rxgk_min_level, realms, names };
        let rxgk = rxgk::Server::new(Dialect::Yfs, keys.clone(), rxgk, Arc::clone(&clock), seed);
        Self { rxkad: rxkad::Server::new(keys, rxkad, clock), rxgk }
    }

    /// All of them, for a service. Where there is no key for rxgk, who comes with a token is told so.
    pub(crate) fn offered(&self) -> Vec<Arc<dyn ServerSecurity>> {
        Self::with(&self.rxkad, &self.rxgk)
    }

    /// The same for the file service of a server with this UUID, which calls its clients back by what they ask for.
    pub(crate) fn offered_by(&self, file_server: &FileServer, uuid: Uuid) -> Vec<Arc<dyn ServerSecurity>> {
        let rxgk = self.rxgk.of_file_server(uuid).telling_callbacks(file_server.callback_classes());
        Self::with(&self.rxkad, &rxgk)
    }

    fn with(rxkad: &rxkad::Server, rxgk: &rxgk::Server) -> Vec<Arc<dyn ServerSecurity>> {
        let [rxgk, yfs] = Dialect::ALL.map(|dialect| rxgk.in_dialect(dialect));
        vec![Arc::new(Null), Arc::new(rxkad.clone()), Arc::new(rxgk), Arc::new(yfs)]
    }

    /// Has this asked about devices whose tokens are shown. Only the first one counts.
    pub(crate) fn refuse_devices(&self, refuses: impl Fn(u32) -> bool + Send + Sync + 'static) {
        self.rxgk.refuse_devices(refuses);
    }

    /// The keys as they are now.
    pub(crate) fn keys(&self) -> Arc<KeySet> {
        self.rxkad.keys()
    }

    /// True if callers can come with rxgk.
    pub(crate) fn has_rxgk(&self) -> bool {
        self.keys().newest(KeyType::RXGK).is_some()
    }

    /// Takes other keys from now on; connections that stand go on.
    pub(crate) fn set_keys(&self, keys: KeySet) {
        self.rxgk.set_keys(keys.clone());
        self.rxkad.set_keys(keys);
    }

    /// Has this called when somebody shows what is sealed with a key that is not there. Only the first one counts.
    pub(crate) fn when_key_is_unknown(&self, look: impl Fn() + Clone + Send + Sync + 'static) {
        self.rxgk.when_key_is_unknown(look.clone());
        self.rxkad.when_key_is_unknown(look);
    }
}
