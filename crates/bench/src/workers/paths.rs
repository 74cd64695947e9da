//! A program that uses files by their paths, as any program does: `afar-bench path-worker WHAT ...`. It is a process of its own,
//! so that it can be put on a core and the bench does not hang with it. What it has found it prints as "end JSON": `seconds` of
//! each pass, and `bytes` or `files` of one.
//!
//! ```text
//! make-file FILE BYTES                   a file with the pattern of `trees.rs`
//! make-tree FOLDER FOLDERS FILES BYTES   folders with files in them
//! make-lines FILE BYTES                  a few lines, and zeros behind them up to this length
//! read FILE BLOCK BYTES PASSES           from its beginning on, so many bytes at a time, at most so many in all (0: all of it)
//! check FILE                             the same once in MiB, comparing with the pattern
//! random FILE BLOCK COUNT PASSES         so many blocks at random places
//! map FILE PASSES                        maps it, and adds up all words
//! small FOLDER PASSES                    opens, reads and closes each file of a tree
//! create FOLDER COUNT BYTES PASSES       makes files, writes and closes each; a folder of its own for each pass
//! records FILE COUNT BYTES               appends so many records to a file, with fdatasync after each
//! run PROGRAM ARGUMENT...                runs a program, to its end
//! first-line FILE...                     opens each and reads until its first line's end; a pass is a file
//! list FOLDER                            `ls -lR`
//! ```
//!
//! Each pass opens its file anew: in which way a file is read is decided when it is opened.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::{Failure, print};
use crate::sys;
use crate::trees::{self, Pattern, Shape};

/// The first argument that makes this program such a process.
pub(crate) const NAME: &str = "path-worker";

/// The bytes that are read at once when contents are checked.
const CHECK_BYTES: usize = 1 << 20;

/// A program that wants one line reads so much at first.
const LINE_BUFFER: usize = 4096;

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let report = match arguments[..] {
        ["make-file", file, bytes] => {
            let bytes = bytes.parse()?;
            passes(1, || Ok(trees::make_file(file.as_ref(), bytes)?), json!({ "bytes": bytes }))?
        }
        ["make-tree", folder, folders, files, bytes] => {
            let shape = Shape { folders: folders.parse()?, files: files.parse()?, bytes: bytes.parse()? };
            let about = json!({ "files": shape.folders * shape.files });
            passes(1, || Ok(trees::make_tree(folder.as_ref(), shape)?), about)?
        }
        ["make-lines", file, bytes] => {
            let bytes = bytes.parse()?;
            passes(1, || make_lines(file.as_ref(), bytes), json!({ "bytes": bytes }))?
        }
        ["read", file, block, bytes, count] => {
            let (block, most) = (block.parse()?, bytes.parse()?);
            let bytes = match most {
                0 => fs::metadata(file)?.len(),
                most => most,
            };
            passes(count.parse()?, || read(file.as_ref(), block, bytes), json!({ "bytes": bytes }))?
        }
        ["check", file] => {
            let bytes = fs::metadata(file)?.len();
            passes(1, || check(file.as_ref(), bytes), json!({ "bytes": bytes }))?
        }
        ["random", file, block, blocks, count] => {
            let (block, blocks): (usize, u64) = (block.parse()?, blocks.parse()?);
            let about = json!({ "bytes": block as u64 * blocks });
            passes(count.parse()?, || random(file.as_ref(), block, blocks), about)?
        }
        ["map", file, count] => {
            let bytes = fs::metadata(file)?.len();
            let map = || {
                black_box(sys::sum_mapped(&File::open(file)?, bytes as usize)?);
                Ok(())
            };
            passes(count.parse()?, map, json!({ "bytes": bytes }))?
        }
        ["small", folder, count] => {
            let files = trees::tree_files(folder.as_ref())?;
            let mut buffer = vec![0; CHECK_BYTES];
            let each = || {
                for path in &files {
                    black_box(File::open(path)?.read(&mut buffer)?);
                }
                Ok(())
            };
            passes(count.parse()?, each, json!({ "files": files.len() }))?
        }
        ["create", folder, files, bytes, count] => {
            let (files, bytes): (usize, usize) = (files.parse()?, bytes.parse()?);
            let (data, mut pass) = (vec![7; bytes], 0);
            let each = || {
                // A directory of AFS has room for so many names.
                let folder = Path::new(folder).join(format!("p{}-{pass}", std::process::id()));
                pass += 1;
                fs::create_dir(&folder)?;
                for number in 0..files {
                    File::create(folder.join(format!("f{number}")))?.write_all(&data)?;
                }
                Ok(())
            };
            passes(count.parse()?, each, json!({ "files": files }))?
        }
        ["records", file, count, bytes] => {
            let (count, data): (usize, _) = (count.parse()?, vec![7; bytes.parse()?]);
            let append = || {
                let mut file = File::create(file)?;
                for _ in 0..count {
                    file.write_all(&data)?;
                    file.sync_data()?;
                }
                Ok(())
            };
            passes(1, append, json!({ "files": count }))?
        }
        ["run", program, ref arguments @ ..] => {
            let run = || match Command::new(program).args(arguments).status()? {
                status if status.success() => Ok(()),
                status => Err(format!("{program}: {status}").into()),
            };
            passes(1, run, json!({}))?
        }
        ["first-line", ref files @ ..] => {
            let mut left = files.iter();
            let each = || {
                let file = File::open(left.next().expect("there are as many passes as files"))?;
                let mut line = String::new();
                BufReader::with_capacity(LINE_BUFFER, file).read_line(&mut line)?;
                if line.is_empty() { Err("there is no line in it".into()) } else { Ok(()) }
            };
            passes(files.len(), each, json!({ "files": files.len() }))?
        }
        ["list", folder] => passes(1, || list(folder), json!({}))?,
        _ => return Err("for afar-bench's own use: see crates/bench/src/workers/paths.rs".into()),
    };
    print(format_args!("end {report}"))?;
    Ok(())
}

/// Runs a pass so often. Reports how long each took.
fn passes(
    count: usize,
    mut pass: impl FnMut() -> Result<(), Failure>,
    mut about: Value,
) -> Result<Value, Failure> {
    let mut seconds = Vec::with_capacity(count);
    for _ in 0..count {
        let started = Instant::now();
        pass()?;
        seconds.push(started.elapsed().as_secs_f64());
    }
    about["seconds"] = json!(seconds);
    Ok(about)
}

fn make_lines(path: &Path, bytes: u64) -> Result<(), Failure> {
    let mut file = File::create(path)?;
    for number in 0..1000 {
        writeln!(file, "line {number}")?;
    }
    file.set_len(bytes)?;
    Ok(())
}

fn read(path: &Path, block: usize, bytes: u64) -> Result<(), Failure> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; block];
    let mut left = bytes;
    while left > 0 {
        let wanted = left.min(block as u64) as usize;
        let count = file.read(&mut buffer[..wanted])?;
        if count == 0 {
            return Err(format!("{} ends {left} bytes too early", path.display()).into());
        }
        left -= count as u64;
    }
    black_box(&buffer);
    Ok(())
}

fn check(path: &Path, bytes: u64) -> Result<(), Failure> {
    let mut file = File::open(path)?;
    let (pattern, mut buffer, mut pos) = (Pattern::new(), vec![0; CHECK_BYTES], 0);
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        if !pattern.is_at(pos, &buffer[..count]) {
            return Err(format!("{} has other bytes than expected after {pos}", path.display()).into());
        }
        pos += count as u64;
    }
    if pos == bytes { Ok(()) } else { Err(format!("{} has {pos} bytes, not {bytes}", path.display()).into()) }
}

fn random(path: &Path, block: usize, blocks: u64) -> Result<(), Failure> {
    let file = File::open(path)?;
    let places = file.metadata()?.len() / block as u64;
    // The same places for all that are compared.
    let mut random = StdRng::seed_from_u64(1);
    let mut buffer = vec![0; block];
    for _ in 0..blocks {
        file.read_exact_at(&mut buffer, random.random_range(0..places) * block as u64)?;
    }
    black_box(&buffer);
    Ok(())
}

fn list(folder: &str) -> Result<(), Failure> {
    let status = Command::new("ls").arg("-lR").arg(folder).stdout(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(format!("ls -lR {folder}: {status}").into()) }
}
