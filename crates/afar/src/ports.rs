//! The names of AFS services in place of port numbers, as options like `-port` take them. A table of our own: that of
//! the system has them on few machines.

/// A port and its names: the program's, and that of the list of assigned numbers.
const SERVICES: &[(u16, &[&str])] = &[
    (7000, &["fileserver", "afs3-fileserver"]),
    (7001, &["callback", "afs3-callback"]),
    (7002, &["ptserver", "afs3-prserver"]),
    (7003, &["vlserver", "afs3-vlserver"]),
    (7004, &["kaserver", "afs3-kaserver"]),
    (7005, &["volserver", "afs3-volser"]),
    (7006, &["errors", "afs3-errors"]),
    (7007, &["bosserver", "afs3-bos"]),
    (7008, &["upserver", "afs3-update"]),
    (7009, &["rmtsysd", "afs3-rmtsys"]),
    (7021, &["buserver"]),
    (7025, &["butc"]),
];

/// Reads a port, by number or by name; the error is a sentence.
pub(crate) fn parse(text: &str) -> Result<u16, String> {
    if let Some((port, _)) = SERVICES.iter().find(|(_, names)| names.contains(&text)) {
        return Ok(*port);
    }
    match text.parse() {
        Ok(0) | Err(_) => Err(format!(
            "'{text}' is no port: give a number from 1 to 65535, or a service such as 'fileserver' or 'vlserver'"
        )),
        Ok(port) => Ok(port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_goes_by_number_and_by_name() {
        assert_eq!(parse("7003"), Ok(7003));
        assert_eq!(parse("vlserver"), Ok(7003));
        assert_eq!(parse("afs3-callback"), Ok(7001));
        for wrong in ["0", "65536", "-5", "", "blah", "7001x"] {
            assert!(parse(wrong).unwrap_err().contains(&format!("'{wrong}'")));
        }
    }
}
