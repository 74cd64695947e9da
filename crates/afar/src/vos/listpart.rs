//! `vos listpart`: the partitions of a server.

use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::printer::say;
use serde_json::json;

/// Partitions on a line; the first has one more.
const A_LINE: usize = 5;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let server = vos.server(given.word("server").unwrap_or_default(), "server", Stop::EXITED)?;
    let partitions = vos.partitions(server).map_err(|code| {
        vos.print_diagnostics("listpart", code);
        Stop::EXITED
    })?;
    if vos.json {
        let names: Vec<String> = partitions.iter().map(ToString::to_string).collect();
        vos.printer.say_json(&json!({ "server": server.to_string(), "partitions": names }));
        return Ok(());
    }
    say!(vos.printer, "The partitions on the server are:\n");
    for (index, partition) in partitions.iter().enumerate() {
        say!(vos.printer, " {:>10} ", partition.to_string());
        if index != 0 && index.is_multiple_of(A_LINE) {
            say!(vos.printer, "\n");
        }
    }
    say!(vos.printer, "\nTotal: {}\n", partitions.len());
    Ok(())
}
