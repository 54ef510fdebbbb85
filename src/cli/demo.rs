//! `dlq-archiver demo`: runs the commands that a user would type, and shows them.

use super::config::Config;
use super::output::line;
use super::paint::{Style, paint};
use super::progress::human_bytes;
use super::{Cli, colour, signals};
use crate::demo::{self, Step, shell_word};
use crate::error::{Error, Result};
use crate::kafka::MockBroker;
use clap::{CommandFactory, FromArgMatches};
use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
#[command(after_help = "Nothing else has to be installed, and nothing outside the folder is touched.")]
pub struct Args {
    /// Folder for the archive, empty or not there yet [default: a new one for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Keep the broker running at the end, until Ctrl-C, to try the commands from another terminal
    #[arg(long)]
    hold: bool,
}

pub async fn run(args: Args) -> Result<u8> {
    let folder = folder(args.dir.as_deref())?;
    // Commands listen for signals, after which the process no longer ends by itself.
    tokio::select! {
        done = play(&folder, args.hold) => done.map(|()| 0),
        interrupted = signals::interrupted() => {
            interrupted?;
            if !args.hold {
                super::output::tell(&format!("Interrupted. The files so far: {}", folder.display()));
            }
            Ok(0)
        }
    }
}

/// The archive's folder, absolute, there and empty.
fn folder(dir: Option<&Path>) -> Result<PathBuf> {
    let failed =
        |e: io::Error| Error::config(format!("cannot make a folder for the archive: {e}. Choose one with --dir"));
    let Some(dir) = dir else {
        return Ok(tempfile::Builder::new().prefix("dlq-archiver-demo-").tempdir().map_err(failed)?.keep());
    };
    std::fs::create_dir_all(dir).map_err(failed)?;
    if std::fs::read_dir(dir).map_err(failed)?.next().is_some() {
        return Err(Error::config(format!("--dir {} is not empty: choose a new folder", dir.display())));
    }
    dir.canonicalize().map_err(failed)
}

async fn play(folder: &Path, hold: bool) -> Result<()> {
    let place = folder.to_str().ok_or_else(|| Error::config("the folder's name is not UTF-8: choose another --dir"))?;
    let broker = MockBroker::start()?;
    let count = tokio::task::block_in_place(|| demo::produce(&broker))?;
    let brokers = broker.brokers();
    heading("An embedded broker and a local folder")?;
    line(&format!("Broker   {brokers}, with {count} dead letters of five programs in it"))?;
    line(&format!("Archive  {place}"))?;
    for Step { heading: title, args } in demo::steps(&brokers, &format!("file://{place}")) {
        heading(title)?;
        let words: Vec<_> = args.iter().map(|a| shell_word(a)).collect();
        line(&paint(&format!("$ dlq-archiver {}", words.join(" ")), Style::Name, coloured()))?;
        let code = command(&args).await?;
        if code != 0 {
            return Err(Error::failed(format!("`dlq-archiver {}` ended with {code}", words.join(" "))));
        }
    }
    files(folder)?;
    sql(place)?;
    heading("To clean up")?;
    line(&format!("$ rm -r {}", shell_word(place)))?;
    if hold {
        line(&format!("\nThe broker {brokers} runs until Ctrl-C: try the commands above in another terminal."))?;
        std::future::pending::<()>().await;
    }
    Ok(())
}

/// Runs one command as if it had been typed, without settings from the environment.
async fn command(args: &[String]) -> Result<u8> {
    let bare = Cli::command().mut_subcommands(|s| s.mut_args(|a| a.env(None::<&'static str>)));
    let argv = std::iter::once("dlq-archiver").chain(args.iter().map(String::as_str));
    let parsed = bare.try_get_matches_from(argv).and_then(|m| Cli::from_arg_matches(&m));
    let cli = parsed.map_err(|e| Error::internal(format!("the demo's own command is wrong: {e}")))?;
    Box::pin(super::run(cli.command, &Config::default())).await
}

fn coloured() -> bool {
    colour(io::stdout().is_terminal())
}

fn heading(text: &str) -> Result<()> {
    line(&format!("\n{}", paint(&format!("== {text}"), Style::Strong, coloured())))
}

/// The data objects, and how many other files there are.
fn files(folder: &Path) -> Result<()> {
    heading("The files")?;
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(dir) = open.pop() {
        let failed = |e: io::Error| Error::failed(format!("cannot list {}: {e}", dir.display()));
        for entry in std::fs::read_dir(&dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.is_dir() { open.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    let mut others: BTreeMap<String, usize> = BTreeMap::new();
    line(&format!("{}/", folder.display()))?;
    for path in found {
        let name = path.strip_prefix(folder).unwrap_or(&path);
        let first = name.iter().next().unwrap_or_default();
        if first == "data" {
            let size = path.metadata().map_or(0, |m| m.len());
            line(&format!("  {}  ({})", name.display(), human_bytes(size)))?;
        } else if name.iter().count() == 1 {
            line(&format!("  {}", name.display()))?;
        } else {
            *others.entry(first.to_string_lossy().into_owned()).or_default() += 1;
        }
    }
    for (dir, count) in others {
        line(&format!("  {dir}/  ({count} files)"))?;
    }
    Ok(())
}

/// How to query the files.
fn sql(place: &str) -> Result<()> {
    let installed = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join("duckdb").is_file()));
    heading(if installed { "Query them: DuckDB is here" } else { "Query them, with DuckDB: pip install duckdb" })?;
    for (title, query) in demo::queries(place) {
        line(&format!("-- {title}\n{query};\n"))?;
    }
    let [(_, query), _] = demo::queries(place);
    let query = shell_word(&query);
    line(&if installed {
        format!("$ duckdb -c {query}")
    } else {
        format!("$ python3 -c 'import duckdb, sys; duckdb.sql(sys.argv[1]).show()' {query}")
    })
}
