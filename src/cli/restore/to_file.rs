//! `restore --to-file`: what a restore would send, in a file or on standard output.
//!
//! Owns the file and what is told of it. Which records are written is [`crate::restore::export`]'s, how each is written
//! [`super::file_format`]'s. Invariant: a file has its name only once it is whole and durable, and takes the place of none.

use super::file_format::{self, FileFormat, Loss};
use super::print;
use crate::catalog::Catalog;
use crate::cli::config::Config;
use crate::cli::output::{self, Output};
use crate::cli::progress::Progress;
use crate::cli::{signals, text};
use crate::error::{Error, Result};
use crate::record::RecordId;
use crate::restore::Counters;
use crate::restore::counts::Counts;
use crate::restore::export::{Export, Exported};
use crate::restore::rules::{Made, Place};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Stdout, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tempfile::NamedTempFile;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Instead of Kafka")]
pub struct Args {
    /// Write the records that would be sent into a new file, or to standard output (-). No brokers are asked: what a
    /// target takes and keeps is not known. Nothing is marked as restored. What is skipped is told on standard error
    #[arg(id = "to_file", long = "to-file", value_name = "PATH",
          conflicts_with_all = ["resume", "take_over", "timestamps", "rate", "by", "reason"])]
    pub path: Option<PathBuf>,

    /// jsonl: each record one line, with the archive's names, nothing lost. kcat: the JSON of kcat -J. Or a text as
    /// kcat -f has it: %k key, %s value, %h headers, %t topic, %p partition, %o offset, %T timestamp, %K and %S lengths of key
    /// and value, %R of the value in 4 bytes, %%; \n \r \t \0 \\ \xHH. The offset is -1, as there is none yet; so is a
    /// partition that is not known
    #[arg(long, value_name = "FORMAT", default_value = "jsonl", value_parser = file_format::parse, requires = "to_file")]
    pub file_format: FileFormat,
}

pub async fn run(args: &super::Args, path: &Path, config: &Config) -> Result<u8> {
    check(args, config)?;
    let path = Some(path).filter(|path| *path != Path::new("-"));
    path.map_or(Ok(()), check_absent)?;
    let catalog = Catalog::open(args.store.read().await?).await?;
    let options = args.options(&catalog).await?;
    let counters = Arc::new(Counters::default());
    let dialects = Arc::new(config.dialects()?);
    let export =
        Export::new(catalog, dialects, options.filter, options.rules, options.values, counters.clone()).await?;
    if args.dry_run {
        let exported = shown(&counters, export.run(|_, _, _| Ok(()))).await?;
        let nothing = if exported.counts.selected == 0 { Some(export.nothing().await?) } else { None };
        let more = print::More { nothing, ..print::More::default() };
        print::draft(&exported.counts, &exported.overlapping, &more, args.output.output)?;
        return Ok(u8::from(exported.counts.has_failures()));
    }
    let mut to = path.map_or_else(|| Ok(Destination::stdout()), Destination::file)?;
    let mut writing = Writing { format: &args.to_file.file_format, line: Vec::new(), losses: BTreeMap::new() };
    let stop = Arc::new(AtomicBool::new(false));
    let work = export.run(|id, place, made| match path {
        Some(path) if stop.load(Relaxed) => Err(stopped(path)),
        _ => writing.record(id, place, made, &mut to),
    });
    let exported = match path {
        // A signal ends it by itself, however long the reader of a pipe keeps it waiting.
        None => work.await?,
        Some(path) => {
            let stop = stop.clone();
            let interrupted = tokio::spawn(async move {
                let _ = signals::interrupted().await;
                stop.store(true, Relaxed);
            });
            tokio::select! {
                done = shown(&counters, work) => done?,
                _ = interrupted => return Err(stopped(path)),
            }
        }
    };
    // A file without a record would be in the way of the next one.
    if exported.counts.to_restore > 0 || path.is_none() {
        to.finish()?;
    }
    tell(&exported, path, &writing.losses);
    if exported.counts.selected == 0 {
        output::tell(&text::clean(&export.nothing().await?.text()));
    }
    Ok(u8::from(exported.counts.has_failures()))
}

/// Refuses what says how records are sent. Variables and the file may say it: they are for other commands, too.
fn check(args: &super::Args, config: &Config) -> Result<()> {
    for (id, flag) in [("delivery", "--delivery"), ("batch", "--batch"), ("batch_bytes", "--batch-bytes")] {
        if config.is_typed(id) {
            return Err(Error::config(format!("{flag} is about Kafka: leave it out with --to-file")));
        }
    }
    match args.output.output {
        Output::Table => Ok(()),
        _ if args.dry_run => Ok(()),
        _ => Err(Error::config(
            "-o is for --dry-run here: with --to-file, what was done is told on standard error. --file-format says how \
             records are written",
        )),
    }
}

/// Shows how far it is.
async fn shown(counters: &Arc<Counters>, work: impl Future<Output = Result<Exported>>) -> Result<Exported> {
    let counters = counters.clone();
    let progress = tokio::spawn(async move {
        let mut progress = Progress::start(None);
        loop {
            tokio::time::sleep(Duration::from_millis(250)).await;
            progress.update(counters.scanned(), || format!("{} records read", counters.scanned()));
        }
    });
    let done = work.await;
    progress.abort();
    let _ = progress.await;
    done
}

struct Writing<'a> {
    format: &'a FileFormat,
    line: Vec<u8>,
    losses: BTreeMap<Loss, u64>,
}

impl Writing<'_> {
    fn record(&mut self, id: &RecordId, place: &Place, made: &Made<'_>, to: &mut Destination) -> Result<()> {
        self.line.clear();
        let losses: BTreeSet<Loss> = self.format.write(id, place, made, &mut self.line);
        for loss in losses {
            *self.losses.entry(loss).or_default() += 1;
        }
        to.write(&self.line)
    }
}

/// Ids that are shown of one reason.
const SHOWN: usize = 20;

fn tell(exported: &Exported, path: Option<&Path>, losses: &BTreeMap<Loss, u64>) {
    let counts: &Counts = &exported.counts;
    for line in print::warnings(counts) {
        tracing::warn!("{line}");
    }
    for other in &exported.overlapping {
        tracing::warn!("{}", print::in_the_way(other));
    }
    for (loss, records) in losses {
        tracing::warn!("{} not written without loss: {}", text::count(*records, "record"), loss.text());
    }
    let to = path.map_or_else(|| "standard output".to_owned(), |path| path.display().to_string());
    let mut lines = vec![format!("wrote {} of {} selected records to {to}", counts.to_restore, counts.selected)];
    for (why, records) in counts.by_reason() {
        lines.push(format!("  {records} skipped: {}; {}", why.text(), why.remedy()));
        if why.is_listed() {
            let ids = counts.skipped.iter().filter(|(skip, _)| skip.why == why).flat_map(|(_, s)| &s.ids);
            let more = records.saturating_sub(SHOWN as u64);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            lines.push(format!("  {}{more}", ids.take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(" ")));
        }
    }
    lines.iter().for_each(|line| output::tell(&text::clean_lines(line)));
}

/// Where the bytes go.
enum Destination {
    Stdout(BufWriter<Stdout>),
    /// Under another name beside it, until it is whole; gone if that does not come.
    File(PathBuf, BufWriter<NamedTempFile>),
}

const BUFFER: usize = 64 << 10;

impl Destination {
    fn stdout() -> Self {
        Self::Stdout(BufWriter::with_capacity(BUFFER, io::stdout()))
    }

    fn file(path: &Path) -> Result<Self> {
        let name = path.file_name().ok_or_else(|| Error::config(format!("--to-file {}: no name", path.display())))?;
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(name);
        let file = tempfile::Builder::new()
            .prefix(&prefix)
            .suffix(".tmp")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder(path))
            .map_err(|e| Error::config(format!("--to-file {}: its folder: {}", path.display(), e.kind())))?;
        Ok(Self::File(path.to_owned(), BufWriter::with_capacity(BUFFER, file)))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Stdout(out) => output::written(out.write_all(bytes)),
            Self::File(path, out) => out.write_all(bytes).map_err(|e| failed(path, &e)),
        }
    }

    fn finish(self) -> Result<()> {
        let (path, out) = match self {
            Self::Stdout(mut out) => return output::written(out.flush()),
            Self::File(path, out) => (path, out),
        };
        let file = out.into_inner().map_err(|e| failed(&path, e.error()))?;
        file.as_file().sync_all().map_err(|e| failed(&path, &e))?;
        file.persist_noclobber(&path).map_err(|e| match e.error.kind() {
            io::ErrorKind::AlreadyExists => exists(&path),
            _ => failed(&path, &e.error),
        })?;
        File::open(folder(&path)).and_then(|folder| folder.sync_all()).map_err(|e| {
            Error::failed(format!("{} is written, but may not outlast a crash of this machine: {e}", path.display()))
        })
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."))
}

fn check_absent(path: &Path) -> Result<()> {
    if path.symlink_metadata().is_ok() { Err(exists(path)) } else { Ok(()) }
}

fn exists(path: &Path) -> Error {
    Error::config(format!(
        "--to-file {0} exists, and is left as it is: name another, or delete it first (into a pipe or a device: \
         --to-file - > {0})",
        path.display()
    ))
}

fn stopped(path: &Path) -> Error {
    Error::failed(format!("stopped; {} was not written", path.display()))
}

fn failed(path: &Path, e: &io::Error) -> Error {
    Error::failed(format!("cannot write {}: {e}; nothing is left of it", path.display()))
}
