//! Every option that OpenAFS's servers say they have is taken in a `parm` line: the list is what they print for `-help`.

use afs_lab::real::folder::Folder;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use afar_interop::lab::Lab;
use afar_interop::process;
use afar_interop::suite::{Case, Trouble, Verdict, Weight};

/// Where Debian has them.
const PROGRAMS: &str = "/usr/lib/openafs";
/// As many as the smallest of them has; fewer, and their help was not understood.
const LEAST_OPTIONS: usize = 15;
const TIMEOUT: Duration = Duration::from_secs(60);

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    let programs = ["fileserver", "dafileserver", "volserver", "davolserver", "vlserver", "ptserver"];
    let case = |program| {
        let lab = Arc::clone(lab);
        let name = format!("options/each_option_of_{program}_is_taken");
        Case::new(name, Weight::Waiting, move || each_is_taken(&lab, program))
    };
    programs.into_iter().map(case).collect()
}

fn each_is_taken(lab: &Lab, program: &str) -> Verdict {
    let path = Path::new(PROGRAMS).join(program);
    if !path.is_file() {
        return Err(Trouble::Skipped(format!("there is no {}", path.display())));
    }
    let help = process::run(Command::new(&path).arg("-help"), TIMEOUT)?;
    let options = options(&format!("{}{}", help.stdout, help.stderr));
    if options.len() < LEAST_OPTIONS {
        return Err(format!("{program} has {options:?}, and more were expected").into());
    }
    let folder = Folder::new("options");
    options.iter().try_for_each(|option| is_taken(lab, &folder, &path, option))
}

fn is_taken(lab: &Lab, folder: &Path, program: &Path, option: &str) -> Verdict {
    let file = folder.join("BosConfig");
    let mut text = String::from("bnode simple one 1\n");
    writeln!(text, "parm {} {option}\nend", program.display()).expect("a string takes it");
    fs::write(&file, text).map_err(|error| error.to_string())?;
    let mut command = lab.afar()?;
    command.args(["server", "--check", "--roles", "file,vol,vl,pt,bos", "--bos-config"]).arg(&file);
    let done = process::run(&mut command, TIMEOUT)?;
    if done.status == Some(0) {
        return Ok(());
    }
    Err(format!("{} {option}: {}", program.display(), done.stderr.trim()).into())
}

/// The options of a usage text, each with a value of the kind that it says it takes.
fn options(help: &str) -> Vec<String> {
    let usage = help.split("Where:").next().unwrap_or_default();
    let usage = usage.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut options = Vec::new();
    let mut rest = usage.as_str();
    while let Some(start) = rest.find("[-") {
        rest = &rest[start + 1..];
        // Values may be in brackets of their own.
        let mut depth = 1;
        let end = rest.find(|c| {
            depth += i32::from(c == '[') - i32::from(c == ']');
            depth == 0
        });
        let (one, behind) = rest.split_at(end.unwrap_or(rest.len()));
        rest = behind;
        let value = one.find('<').map(|at| value(one[at + 1..].split('>').next().unwrap_or_default()));
        let names = one.split('<').next().unwrap_or_default();
        for name in names.split_whitespace().filter(|word| word.starts_with('-')) {
            options.push(match (&value, name) {
                (Some(_), "-default_access") => format!("{name} S---- S-M--"),
                (Some(value), _) => format!("{name} {value}"),
                (None, _) => name.to_owned(),
            });
        }
    }
    options
}

/// A value for what the help calls so.
fn value(placeholder: &str) -> &str {
    match placeholder {
        text if text.contains('|') => text.split('|').next().unwrap_or_default().trim(),
        text if text.contains("access bits") => "rlk",
        text if text.contains("MTU") => "1400",
        text if text.contains("interface") => "file",
        text if ["location", "file>", "database file", "trace file"]
            .iter()
            .any(|word| text.contains(word)) =>
        {
            "/nowhere"
        }
        text if text.contains("realm") => "A.TEST",
        _ => "16",
    }
}
