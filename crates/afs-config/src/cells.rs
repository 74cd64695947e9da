//! This cell, and the cells that there are: `ThisCell`, `CellServDB`, `CellAlias`.

use std::collections::HashMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::path::Path;

use crate::error::{ConfigError, Problem};
use crate::text;

/// The longest name of a cell, in bytes, that OpenAFS's programs have room for (MAXCELLCHARS, with its NUL 64).
pub const MAX_CELL_NAME_BYTES: usize = 63;

/// Most servers of one cell. OpenAFS takes 8; more only costs a client time when all are silent.
const MAX_SERVERS: usize = 64;

/// The name of a cell: a DNS name, compared without regard to case and kept in lower case, as DNS and OpenAFS's cache
/// manager have it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellName(String);

impl CellName {
    /// A name from text; `None` if it is empty, too long, or has a byte that a file name or a Kerberos principal would stumble over.
    pub fn new(name: &str) -> Option<Self> {
        let is_fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        let fits = (1..=MAX_CELL_NAME_BYTES).contains(&name.len());
        (fits && !name.starts_with('.') && name.bytes().all(is_fine)).then(|| Self(name.to_ascii_lowercase()))
    }

    /// The name, in lower case.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn parse(path: &Path, line: usize, name: &str) -> Result<Self, ConfigError> {
        Self::new(name).ok_or_else(|| ConfigError::new(path, line, Problem::CellName(name.to_owned())))
    }
}

impl fmt::Display for CellName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl AsRef<str> for CellName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// `ThisCell`: the cell that this machine belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThisCell(pub CellName);

impl ThisCell {
    /// The first word of the text; what follows it is ignored, as OpenAFS does.
    ///
    /// # Errors
    ///
    /// When there is none, or it cannot be a cell's name.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let (line, word) = text
            .lines()
            .enumerate()
            .find_map(|(index, line)| Some((index + 1, line.split_whitespace().next()?)))
            .ok_or_else(|| ConfigError::new(path, None, Problem::Empty))?;
        CellName::parse(path, line, word).map(Self)
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// When it cannot be read, and as [`Self::parse`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&text::read(path)?, path)
    }
}

/// A database server of a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DbServer {
    /// Its address. The port is each service's own.
    pub address: Ipv4Addr,
    /// Its name, if one stands behind the address.
    pub name: Option<String>,
    /// True if it only has a copy and no vote (`[192.0.2.1]`), in the server's file.
    pub is_clone: bool,
}

/// A cell and its database servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// Its name.
    pub name: CellName,
    /// The cell in which a volume is looked for that this one does not have.
    pub linked: Option<CellName>,
    /// The file's comment on it, behind `#`.
    pub comment: Option<String>,
    /// Its servers, in the order of the file. None, and DNS is asked.
    pub servers: Vec<DbServer>,
}

/// `CellServDB`: cells and their database servers, the same for clients and servers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CellServDb {
    /// The cells, in the order of the file.
    pub cells: Vec<Cell>,
}

impl CellServDb {
    /// The cells of the text. Blank lines, and lines that begin with `#`, are allowed. As with OpenAFS, a cell that occurs twice, however
    /// it is spelt, is what stands last, so that lines may be added to a file that is somebody else's. A line that is no address is passed
    /// over with a warning: it is no reason to do without all the other cells.
    ///
    /// # Errors
    ///
    /// When what should be a cell cannot be one, or a server stands before all cells.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let mut cells: Vec<Cell> = Vec::new();
        let mut seen = HashMap::new();
        for (number, line) in text::lines(text) {
            let failed = |problem| ConfigError::new(path, number, problem);
            let Some(rest) = line.strip_prefix('>') else {
                let Some(server) = parse_server(line) else {
                    tracing::warn!(file = %path.display(), line = number, text = line, "this is no address, and is passed over");
                    continue;
                };
                let cell = cells.last_mut().ok_or_else(|| failed(Problem::ServerBeforeCell))?;
                if cell.servers.len() == MAX_SERVERS {
                    return Err(failed(Problem::TooManyServers(MAX_SERVERS)));
                }
                cell.servers.push(server);
                continue;
            };
            let (names, comment) = split_comment(rest);
            let words: Vec<&str> = names.split_whitespace().collect();
            let (name, linked) = match words[..] {
                [] => return Err(failed(Problem::CellName(String::new()))),
                [name] => (name, None),
                [name, linked] => (name, Some(CellName::parse(path, number, linked)?)),
                [..] => {
                    let expected = ">CELL [LINKED CELL] #COMMENT";
                    return Err(failed(Problem::Fields { expected, found: words.len() }));
                }
            };
            let name = CellName::parse(path, number, name)?;
            if let Some(first) = seen.insert(name.clone(), number) {
                tracing::warn!(
                    file = %path.display(), cell = %name, line = number, first,
                    "the cell stands twice: the last one counts"
                );
                cells.retain(|cell| cell.name != name);
            }
            cells.push(Cell { name, linked, comment, servers: Vec::new() });
        }
        Ok(Self { cells })
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// When it cannot be read, and as [`Self::parse`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&text::read(path)?, path)
    }

    /// The cell of this name, or, as OpenAFS's tools allow, the only one whose name begins so.
    pub fn find(&self, name: &str) -> Option<&Cell> {
        let name = name.to_ascii_lowercase();
        if let Some(cell) = self.cells.iter().find(|cell| cell.name.as_str() == name) {
            return Some(cell);
        }
        let mut begin =
            self.cells.iter().filter(|cell| !name.is_empty() && cell.name.as_str().starts_with(&name));
        let first = begin.next()?;
        begin.next().is_none().then_some(first)
    }
}

impl fmt::Display for CellServDb {
    /// Writes the file's format.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for cell in &self.cells {
            write!(f, ">{}", cell.name)?;
            if let Some(linked) = &cell.linked {
                write!(f, " {linked}")?;
            }
            writeln!(f, " #{}", cell.comment.as_deref().unwrap_or_default())?;
            for DbServer { address, name, is_clone } in &cell.servers {
                let (open, close) = if *is_clone { ("[", "]") } else { ("", "") };
                let name = name.clone().unwrap_or_else(|| address.to_string());
                writeln!(f, "{open}{address}{close} #{name}")?;
            }
        }
        Ok(())
    }
}

fn parse_server(line: &str) -> Option<DbServer> {
    let (address, name) = split_comment(line);
    let address = address.trim();
    let inner = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let text = inner.unwrap_or(address).trim();
    let address: Ipv4Addr = text.parse().ok()?;
    let name = name.and_then(|name| name.split_whitespace().next().map(str::to_owned));
    // The address once more stands where there is no name to be told.
    let name = name.filter(|name| *name != address.to_string());
    Some(DbServer { address, name, is_clone: inner.is_some() })
}

fn split_comment(line: &str) -> (&str, Option<String>) {
    match line.split_once('#') {
        Some((before, comment)) => (before, Some(comment.trim().to_owned()).filter(|c| !c.is_empty())),
        None => (line, None),
    }
}

/// A short name for a cell, shown in a dynamic `/afs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellAlias {
    /// The cell.
    pub cell: CellName,
    /// The name; with a dot in front it is the writable side, without further ado.
    pub alias: String,
}

/// `CellAlias`: a cell and its alias on each line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CellAliases {
    /// The aliases, in the order of the file.
    pub aliases: Vec<CellAlias>,
}

impl CellAliases {
    /// The aliases of the text.
    ///
    /// # Errors
    ///
    /// When a line is not a cell and an alias; aliases with a dot in front come by themselves and must not be listed.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let mut aliases = Vec::new();
        for (number, line) in text::lines(text) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let &[cell, alias] = &words[..] else {
                let problem = Problem::Fields { expected: "CELL ALIAS", found: words.len() };
                return Err(ConfigError::new(path, number, problem));
            };
            if alias.starts_with('.') || alias.contains('/') {
                return Err(ConfigError::new(path, number, Problem::Alias(alias.to_owned())));
            }
            aliases.push(CellAlias { cell: CellName::parse(path, number, cell)?, alias: alias.to_owned() });
        }
        Ok(Self { aliases })
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// When it cannot be read, and as [`Self::parse`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&text::read(path)?, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> &'static Path {
        Path::new("F")
    }

    #[test]
    fn cells_are_read_as_openafs_writes_them() {
        let text = ">Example.com\t # Example Corporation\n192.0.2.2\t #db1.example.com\n[192.0.2.3] #db2.example.com\n\
                    >test.example.com example.com #Test Cell\n192.0.2.9 # t.example.com\n\n>alone.example.net\n";
        let db = CellServDb::parse(text, path()).unwrap();
        let names: Vec<_> = db.cells.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["example.com", "test.example.com", "alone.example.net"]);
        let first = &db.cells[0];
        assert_eq!(first.comment.as_deref(), Some("Example Corporation"));
        assert_eq!(first.servers[0].name.as_deref(), Some("db1.example.com"));
        assert!(!first.servers[0].is_clone && first.servers[1].is_clone);
        assert_eq!(db.cells[1].linked.as_ref().unwrap().as_str(), "example.com");
        assert_eq!(db.cells[1].servers[0].name.as_deref(), Some("t.example.com"));
        assert_eq!(CellServDb::parse(&db.to_string(), path()).unwrap(), db, "what is written is read back");
    }

    #[test]
    fn a_cell_is_found_by_its_name_or_an_unambiguous_beginning() {
        let db = CellServDb::parse(">a.example #\n>a.example.org #\n>b.example #\n", path()).unwrap();
        let find = |name| db.find(name).map(|cell| cell.name.as_str());
        assert_eq!(find("A.EXAMPLE"), Some("a.example"));
        assert_eq!(find("b"), Some("b.example"));
        assert_eq!(find("a"), None);
        assert_eq!(find(""), None);
    }

    #[test]
    fn a_cell_that_stands_twice_is_what_stands_last() {
        let text = ">x.example #first\n192.0.2.1 #\n>b.example #\n192.0.2.2 #\n>X.EXAMPLE #second\n192.0.2.3 #\n192.0.2.4 #\n";
        let db = CellServDb::parse(text, path()).unwrap();
        assert_eq!(db.cells.len(), 2);
        let cell = db.find("x.example").unwrap();
        assert_eq!(cell.comment.as_deref(), Some("second"));
        let addresses: Vec<_> = cell.servers.iter().map(|server| server.address.to_string()).collect();
        assert_eq!(addresses, ["192.0.2.3", "192.0.2.4"]);
        assert_eq!(db.find("b.example").unwrap().servers.len(), 1);
    }

    #[test]
    fn a_line_that_is_no_address_leaves_the_others() {
        let text = "stray\n>a #\n1.2.3 #a\n[1.2.3.4 #a\ndb.example #a\n192.0.2.7 #b\n>b #\n192.0.2.8\n";
        let db = CellServDb::parse(text, path()).unwrap();
        let servers = |name| db.find(name).unwrap().servers.iter().map(|s| s.address.to_string()).collect();
        let (a, b): (Vec<_>, Vec<_>) = (servers("a"), servers("b"));
        assert_eq!((&a[..], &b[..]), (&["192.0.2.7".to_owned()][..], &["192.0.2.8".to_owned()][..]));
    }

    #[test]
    fn what_is_wrong_with_a_list_of_cells_is_said_with_its_line() {
        let check = |text: &str, line, problem| {
            assert_eq!(
                CellServDb::parse(text, path()),
                Err(ConfigError::new(path(), line, problem)),
                "{text}"
            );
        };
        check("1.2.3.4 #a\n", 1, Problem::ServerBeforeCell);
        check("> #nothing\n", 1, Problem::CellName(String::new()));
        check(">a/b #\n", 1, Problem::CellName("a/b".into()));
        check(">a b c #\n", 1, Problem::Fields { expected: ">CELL [LINKED CELL] #COMMENT", found: 3 });
        check(&format!(">{}", "x".repeat(64)), 1, Problem::CellName("x".repeat(64)));
        check(&format!(">a\n{}", "1.2.3.4 #x\n".repeat(65)), 66, Problem::TooManyServers(64));
    }

    #[test]
    fn this_cell_is_the_first_word() {
        assert_eq!(ThisCell::parse("\n Lab.Test rest\nmore", path()).unwrap().0.as_str(), "lab.test");
        assert_eq!(ThisCell::parse(" \n", path()), Err(ConfigError::new(path(), None, Problem::Empty)));
        let error = ThisCell::parse("\n..", path()).unwrap_err();
        assert!(error.to_string().starts_with("F, line 2: '..' cannot be the name of a cell"), "{error}");
    }

    #[test]
    fn an_alias_has_no_dot_and_no_slash() {
        let aliases =
            CellAliases::parse("prod.example.com prod\n#x\ntest.example.org\ttestcell\n", path()).unwrap();
        assert_eq!(aliases.aliases[1].alias, "testcell");
        for bad in [".prod", "a/b"] {
            let error = CellAliases::parse(&format!("\nprod.example.com {bad}"), path()).unwrap_err();
            assert_eq!(error, ConfigError::new(path(), 2, Problem::Alias(bad.into())));
        }
        let problem = Problem::Fields { expected: "CELL ALIAS", found: 1 };
        assert_eq!(CellAliases::parse("x", path()), Err(ConfigError::new(path(), 1, problem)));
    }

    #[test]
    fn a_file_that_is_not_there_is_told_apart() {
        let error = CellServDb::read(Path::new("/nowhere/CellServDB")).unwrap_err();
        assert!(error.is_missing());
        assert_eq!(error.to_string(), "/nowhere/CellServDB: there is no such file");
    }
}
