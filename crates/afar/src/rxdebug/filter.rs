//! The connections and peers that `rxdebug` shows: the options `-nodally` and `-only...`, as observed with OpenAFS
//! 1.8.9.

use rx_proto::debug::{CallState, ConnectionSide, DebugConnection, DebugPeer, SecurityKind, SecurityLevel};
use rx_proto::ids::SecurityIndex;
use std::net::Ipv4Addr;

/// The index of the null security class.
const NULL: SecurityIndex = SecurityIndex(0);

/// The index of rxkad.
pub(super) const KAD: SecurityIndex = SecurityIndex(2);

/// The conditions for what to show. All conditions must hold.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Filter {
    /// Leave out connections whose calls are all done.
    pub(super) skips_dallying: bool,
    /// Only those that the server serves.
    pub(super) only_server: bool,
    /// Only those in which the server calls.
    pub(super) only_client: bool,
    /// Only those to this port.
    pub(super) only_port: Option<u16>,
    /// Only those to this host.
    pub(super) only_host: Option<Ipv4Addr>,
    /// Only those with this protection.
    pub(super) only_auth: Option<Auth>,
}

/// The security that `-onlyauth` names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Auth {
    /// No security.
    None,
    /// rxkad at this level.
    Kad(SecurityLevel),
}

impl Auth {
    /// Reads the option's value.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "clear" => Ok(Self::Kad(SecurityLevel::CLEAR)),
            "auth" => Ok(Self::Kad(SecurityLevel::AUTH)),
            "crypt" => Ok(Self::Kad(SecurityLevel::CRYPT)),
            "null" | "none" | "noauth" | "unauth" => Ok(Self::None),
            _ => Err(format!("unknown authentication level '{text}': it is one of clear, auth, crypt, none")),
        }
    }

    /// The word for it in the output.
    pub(super) fn word(self) -> String {
        match self {
            Self::None => "unauthenticated".to_owned(),
            Self::Kad(level) => format!("rxkad_{}", level.word().unwrap_or("unknown")),
        }
    }

    fn is_that_of(self, connection: &DebugConnection) -> bool {
        match self {
            Self::None => connection.security_index == NULL,
            // A connection that does not tell its level is shown under each.
            Self::Kad(level) => {
                let stats = &connection.sec_stats;
                connection.security_index == KAD && (stats.kind != SecurityKind::KAD || stats.level == level)
            }
        }
    }
}

impl Filter {
    /// True if the connection is left out, and counted, as none of its calls goes on. The other conditions do not matter
    /// here.
    pub(super) fn skips_as_dallying(&self, connection: &DebugConnection) -> bool {
        let is_over = |state| matches!(state, CallState::NOT_INITIALIZED | CallState::DALLY);
        self.skips_dallying && connection.call_state.into_iter().all(is_over)
    }

    /// True if the connection is shown.
    pub(super) fn shows_connection(&self, connection: &DebugConnection) -> bool {
        self.shows_address(connection.host, connection.port)
            && !(self.only_server && connection.side != ConnectionSide::SERVER)
            && !(self.only_client && connection.side != ConnectionSide::CLIENT)
            && self.only_auth.is_none_or(|auth| auth.is_that_of(connection))
    }

    /// True if the peer is shown.
    pub(super) fn shows_peer(&self, peer: &DebugPeer) -> bool {
        self.shows_address(peer.host, peer.port)
    }

    fn shows_address(&self, host: Ipv4Addr, port: u16) -> bool {
        self.only_host.is_none_or(|only| only == host) && self.only_port.is_none_or(|only| only == port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(states: [u8; 4], side: u8, security: u8) -> DebugConnection {
        DebugConnection {
            host: Ipv4Addr::new(10, 0, 0, 1),
            port: 7001,
            call_state: states.map(CallState),
            side: ConnectionSide(side),
            security_index: SecurityIndex(security),
            ..DebugConnection::default()
        }
    }

    #[test]
    fn a_connection_dallies_when_none_of_its_calls_goes_on() {
        let filter = Filter { skips_dallying: true, ..Filter::default() };
        for (states, skipped) in [
            ([3, 0, 0, 0], true),
            ([0; 4], true),
            ([3; 4], true),
            ([3, 5, 0, 0], false),
            ([3, 4, 0, 0], false),
            ([0, 1, 0, 0], false),
            ([2; 4], false),
        ] {
            assert_eq!(filter.skips_as_dallying(&connection(states, 1, 0)), skipped, "{states:?}");
            assert!(!Filter::default().skips_as_dallying(&connection(states, 1, 0)));
        }
    }

    #[test]
    fn a_side_that_is_neither_is_shown_only_without_a_condition() {
        let server = Filter { only_server: true, ..Filter::default() };
        let client = Filter { only_client: true, ..Filter::default() };
        let shown =
            |filter: Filter| [0, 1, 7].map(|side| filter.shows_connection(&connection([0; 4], side, 0)));
        assert_eq!(shown(Filter::default()), [true; 3]);
        assert_eq!(shown(server), [false, true, false]);
        assert_eq!(shown(client), [true, false, false]);
    }

    #[test]
    fn a_level_is_that_of_rxkad_and_unknown_levels_are_shown_under_each() {
        let crypt = Filter { only_auth: Some(Auth::Kad(SecurityLevel::CRYPT)), ..Filter::default() };
        let none = Filter { only_auth: Some(Auth::None), ..Filter::default() };
        let mut kad = connection([0; 4], 1, 2);
        assert!(crypt.shows_connection(&kad) && !none.shows_connection(&kad));
        kad.sec_stats.kind = SecurityKind::KAD;
        assert!(!crypt.shows_connection(&kad));
        kad.sec_stats.level = SecurityLevel::CRYPT;
        assert!(crypt.shows_connection(&kad));
        assert!(
            none.shows_connection(&connection([0; 4], 1, 0))
                && !crypt.shows_connection(&connection([0; 4], 1, 0))
        );
    }

    #[test]
    fn host_and_port_choose_among_peers_too() {
        let peer = DebugPeer { host: Ipv4Addr::LOCALHOST, port: 7001, ..DebugPeer::default() };
        let filter =
            |host, port| Filter { only_host: Some(host), only_port: Some(port), ..Filter::default() };
        assert!(filter(Ipv4Addr::LOCALHOST, 7001).shows_peer(&peer));
        assert!(!filter(Ipv4Addr::LOCALHOST, 7000).shows_peer(&peer));
        assert!(!filter(Ipv4Addr::UNSPECIFIED, 7001).shows_peer(&peer));
    }
}
