//! The line of an invitation: what reads back, and what a person who copies or types it is told.

use afs_join::{Invitation, LineError, PublicKey};
use afs_wire::ids::CellName;
use afs_wire::join::JoinSecret;

fn invitation(servers: &[&str]) -> Invitation {
    Invitation {
        cell: CellName::new("home.example").unwrap(),
        servers: servers.iter().map(|server| server.parse().unwrap()).collect(),
        key: PublicKey(std::array::from_fn(|at| at as u8 * 7)),
        secret: JoinSecret(std::array::from_fn(|at| 255 - at as u8)),
    }
}

fn check(line: &str, want: Result<&Invitation, LineError>) {
    assert_eq!(line.parse::<Invitation>().as_ref(), want.as_ref().map(|invitation| *invitation), "{line:?}");
}

/// The line is what people keep: programs of later releases must read it.
#[test]
fn a_line_has_the_form_that_it_had() {
    let line = invitation(&["192.0.2.7:7003", "198.51.100.9:7103"]).to_line();
    assert_eq!(
        *line,
        "afar1/home.example/192.0.2.7,198.51.100.9:7103/\
         003gw58w4cn32e1z8s6n8pv2d5r7ezm5hj9sn8d8nyvbvh6btbczzzqxzkxznyfryzvfbx7kybrz1vzexqp0/tyj8vba0"
    );
}

#[test]
fn a_line_reads_back_however_it_was_copied() {
    for servers in [&["192.0.2.7:7003"][..], &["192.0.2.7:7003", "198.51.100.9:7103", "203.0.113.1:1"]] {
        let want = invitation(servers);
        let line = want.to_line();
        check(&line, Ok(&want));
        check(&line.to_uppercase(), Ok(&want));
        let wrapped: String = line.chars().flat_map(|c| [c, '\n', ' ']).collect();
        check(&wrapped, Ok(&want));
        check(&format!("  {}\r\n", *line), Ok(&want));
        let (front, digits) = line.split_at(line.len() - 80);
        check(&format!("{front}{}", digits.replace('0', "O").replace('1', "l")), Ok(&want));
    }
}

#[test]
fn a_line_with_any_character_changed_is_told_from_one_that_is_refused() {
    let want = invitation(&["192.0.2.7:7003"]);
    let line = want.to_line();
    let digits = "0123456789abcdefghjkmnpqrstvwxyz./";
    let mut mistyped = 0;
    for at in 0..line.len() {
        for other in digits.chars().filter(|c| !line[at..].starts_with(*c)) {
            let changed = format!("{}{other}{}", &line[..at], &line[at + 1..]);
            let error = changed.parse::<Invitation>().expect_err(&changed);
            assert!(!matches!(error, LineError::Malformed(_)), "{changed}: {error:?}");
            mistyped += usize::from(error == LineError::Mistyped);
        }
    }
    assert!(mistyped > 100 * digits.len(), "most are told as mistyped");
}

#[test]
fn a_line_that_lacks_a_part_or_is_none_is_told_as_that() {
    let line = invitation(&["192.0.2.7:7003"]).to_line();
    for length in 0..line.len() {
        let error = line[..length].parse::<Invitation>().expect_err(&line[..length]);
        assert!(
            matches!(error, LineError::NoInvitation | LineError::CutShort | LineError::Mistyped),
            "{length}: {error:?}"
        );
    }
    check("", Err(LineError::NoInvitation));
    check("hello", Err(LineError::NoInvitation));
    check("https://example.org/a/b/c", Err(LineError::NoInvitation));
    check(&line.replacen("afar1", "afar2", 1), Err(LineError::OtherForm));
    check(&format!("{}/x", *line), Err(LineError::CutShort));
    check(&format!("{}{}", *line, "x".repeat(5000)), Err(LineError::NoInvitation));
}

#[test]
fn a_line_does_not_show_its_secret_in_messages() {
    let invitation = invitation(&["192.0.2.7:7003"]);
    let text = format!("{invitation:?}");
    assert!(text.contains("JoinSecret(..)") && !text.contains("255") && !text.contains("254"), "{text}");
}
