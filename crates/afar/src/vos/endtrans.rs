//! `vos endtrans`: ends a transaction of a volume server, so that others need not wait until the server does it.

use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::numbers;
use crate::printer::complain;
use afs_admin::volumes::Transaction;
use afs_wire::ids::TransId;
use serde_json::json;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let server = vos.server(given.word("server").unwrap_or_default(), "host", Stop::RETURNED)?;
    let text = given.word("transaction").unwrap_or_default();
    let number = numbers::parse::<u32>(text, 0..=u32::MAX).map_err(|_| {
        complain!(vos.printer, "vos: bad integer specified for transaction ID.\n");
        Stop::RETURNED
    })?;
    let id = TransId(number.cast_signed());
    vos.end(Transaction { server, id }).map_err(|code| {
        vos.print_diagnostics("endtrans", code);
        Stop::RETURNED
    })?;
    if vos.json {
        vos.printer.say_json(&json!({ "ended": number, "server": server.to_string() }));
    }
    Ok(())
}
