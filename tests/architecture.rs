//! Keeps the borders that ARCHITECTURE.md draws, by reading the source. Comments, strings and unit tests are left out
//! of what is read; the allow-lists at the top are all the exceptions there are.

use std::fs;
use std::path::{Path, PathBuf};

/// Decide and describe; the shells bring time, chance, threads, files and network. So does every file whose opening
/// says `Pure.`. Those that are not there yet are passed over.
const PURE: &[&str] = &[
    "cut.rs",
    "dialect/",
    "error.rs",
    "filter.rs",
    "format/",
    "health.rs",
    "layout.rs",
    "ledger/",
    "record/",
    "restore/batch.rs",
    "restore/past.rs",
    "restore/pieces.rs",
    "restore/plan.rs",
    "retention.rs",
    "routing.rs",
    "status/advice.rs",
    "status/facts.rs",
    "status/report.rs",
    "topics.rs",
];

/// What pure code does not name: (text, what it would be).
const IMPURE: &[(&str, &str)] = &[
    ("tokio", "async runtime"),
    ("futures", "async runtime"),
    ("rdkafka", "Kafka"),
    ("aws_", "S3"),
    ("SystemTime", "clock"),
    ("Instant", "clock"),
    ("Utc::now", "clock"),
    ("Local::now", "clock"),
    ("now_us", "clock"),
    ("new_v4", "chance"),
    ("RandomState", "chance"),
    ("std::env", "environment"),
    ("std::fs", "files"),
    ("std::io::stdin", "standard input"),
    ("std::net", "network"),
    ("std::process", "processes"),
    ("std::thread", "threads"),
    ("tempfile", "files"),
    ("tracing", "log"),
    ("crate::archive", "a shell"),
    ("crate::cli", "a shell"),
    ("crate::kafka", "a shell"),
    ("crate::store", "a shell"),
];

/// (text, the only place under src/ that may have it)
const ONE_PLACE: &[(&str, &str)] =
    &[("rdkafka", "kafka/"), ("aws_", "store/s3/"), ("clap", "cli/"), ("hyper", "http.rs")];

/// Where code may be `unsafe`, and why.
const UNSAFE: &[(&str, &str)] = &[
    ("kafka/", "librdkafka is a C library"),
    ("format/columns.rs", "views into a batch's arena are not looked at once more, as text or at all"),
    ("record/raw.rs", "a prefetch is an instruction of the processor"),
    ("record/text.rs", "what was found to be ASCII is text"),
    ("allocator.rs", "jemalloc(3) finds its settings by a symbol's name"),
];

/// A record or a broker's answer must never end the process.
const PANICS: &[&str] = &[
    ".unwrap()",
    ".unwrap_err()",
    ".expect(",
    ".expect_err(",
    "panic!",
    "todo!",
    "unimplemented!",
    "unreachable!",
    "dbg!",
    // They panic where the stream cannot be written: a full disk, a closed pipe.
    "println!",
    "print!",
    "process::exit",
];

/// (file, line, why it cannot happen). An entry that matches nothing any more is an error too.
const MAY_PANIC: &[(&str, &str, &str)] = &[
    ("dialect/mod.rs", "Self::from_tables(BUILTIN).expect(", "compiled in; a unit test reads them"),
    ("ledger/documents.rs", "c.try_into().expect(", "chunks_exact(8) gives 8 bytes"),
];

/// Lines of code in one file, without comments and empty lines.
const LONGEST: usize = 500;

struct Source {
    /// Below src/, with `/`.
    name: String,
    text: String,
    /// `text` with comments and the insides of literals blanked, up to the unit tests.
    code: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    walk(&root, &mut files);
    assert!(files.len() > 20, "src/ was not found");
    let mut sources: Vec<Source> = (files.iter())
        .map(|path| {
            let name = path.strip_prefix(&root).unwrap().to_string_lossy().replace('\\', "/");
            let text = fs::read_to_string(path).unwrap();
            let code = blank(&text);
            Source { name, text, code }
        })
        .collect();
    sources.sort_by(|a, b| a.name.cmp(&b.name));
    // `#[cfg(test)] mod x;` makes x.rs a file of tests.
    let tests: Vec<String> = (sources.iter())
        .flat_map(|s| {
            let folder = s.name.strip_suffix("mod.rs").map_or_else(|| s.name.replace(".rs", "/"), str::to_owned);
            let modules = s.code.split("#[cfg(test)]").skip(1).filter_map(|rest| {
                rest.trim_start().strip_prefix("mod ").and_then(|m| m.split_once(';')).map(|(name, _)| name.to_owned())
            });
            modules.filter(|m| !m.contains('{')).map(move |m| format!("{folder}{m}.rs")).collect::<Vec<_>>()
        })
        .collect();
    for source in &mut sources {
        // So is what lies in its folder.
        let is_test = |t: &String| source.name == *t || source.name.starts_with(&t.replace(".rs", "/"));
        if tests.iter().any(is_test) {
            source.code.clear();
        } else {
            without_tests(&mut source.code);
        }
    }
    sources
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
}

/// Blanks comments and what is in string and character literals; keeps every line break.
fn blank(text: &str) -> String {
    let c: Vec<char> = text.chars().collect();
    let mut out: Vec<char> = c.iter().map(|x| if *x == '\n' { '\n' } else { ' ' }).collect();
    let mut i = 0;
    while i < c.len() {
        let rest = &c[i..];
        let in_word = i > 0 && (c[i - 1].is_alphanumeric() || c[i - 1] == '_');
        let hashes = rest.iter().skip(1).take_while(|x| **x == '#').count();
        let to = if rest.starts_with(&['/', '/']) {
            Some(i + rest.iter().position(|x| *x == '\n').unwrap_or(rest.len()))
        } else if rest.starts_with(&['/', '*']) {
            Some(i + comment_len(rest))
        } else if rest[0] == '"' {
            Some(i + string_len(rest))
        } else if rest[0] == 'r' && rest.get(1 + hashes) == Some(&'"') && (!in_word || c[i - 1] == 'b') {
            let end: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
            let body = &rest[2 + hashes..];
            Some(i + 2 + hashes + body.windows(end.len()).position(|w| w == end).unwrap() + end.len())
        } else if rest[0] == '\'' && (rest.get(1) == Some(&'\\') || rest.get(2) == Some(&'\'')) {
            // A lifetime has no second quote there.
            Some(
                i + 2
                    + rest[2..].iter().position(|x| *x == '\'').unwrap()
                    + 1
                    + usize::from(rest.starts_with(&['\'', '\\', '\''])),
            )
        } else {
            None
        };
        if to.is_none() {
            out[i] = c[i];
        }
        i = to.unwrap_or(i + 1);
    }
    out.into_iter().collect()
}

fn comment_len(rest: &[char]) -> usize {
    let (mut depth, mut i) = (0, 0);
    while i < rest.len() {
        if rest[i..].starts_with(&['/', '*']) {
            depth += 1;
            i += 2;
        } else if rest[i..].starts_with(&['*', '/']) {
            depth -= 1;
            i += 2;
            if depth == 0 {
                break;
            }
        } else {
            i += 1;
        }
    }
    i
}

fn string_len(rest: &[char]) -> usize {
    let mut i = 1;
    while i < rest.len() && rest[i] != '"' {
        i += if rest[i] == '\\' { 2 } else { 1 };
    }
    i + 1
}

/// Cuts unit tests off: an item behind `#[cfg(test)]`, up to the brace or semicolon that ends it.
fn without_tests(code: &mut String) {
    while let Some(start) = code.find("#[cfg(test)]") {
        let (mut depth, mut end) = (0, code.len());
        for (i, x) in code[start..].char_indices() {
            match x {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 && matches!(x, '}' | ';') {
                end = start + i + 1;
                break;
            }
        }
        let lines = code[start..end].matches('\n').count();
        code.replace_range(start..end, &"\n".repeat(lines));
    }
}

/// Lines (from 1) where `text` stands as words of their own.
fn found(code: &str, text: &str) -> Vec<(usize, String)> {
    let word = |x: Option<char>| x.is_some_and(|x| x.is_alphanumeric() || x == '_');
    let is_at = |line: &str, at: usize| {
        let open = text.ends_with(['_', '(', '!']);
        let starts_word = text.starts_with(|x: char| x.is_alphanumeric());
        (!starts_word || !word(line[..at].chars().next_back()))
            && (open || text == "rdkafka" || !word(line[at + text.len()..].chars().next()))
    };
    let lines = code.lines().enumerate();
    lines
        .filter(|(_, line)| line.match_indices(text).any(|(at, _)| is_at(line, at)))
        .map(|(i, line)| (i + 1, line.trim().to_owned()))
        .collect()
}

/// `use std::{fs, io}` as `std::fs`, `std::io`, each in its line.
fn flat_uses(code: &str) -> String {
    let mut flat = code.to_owned();
    for root in ["std", "crate"] {
        let opening = format!("use {root}::{{");
        for rest in code.split(&opening).skip(1) {
            let (mut depth, mut name) = (0, String::new());
            for x in rest.split(';').next().unwrap_or_default().chars() {
                match x {
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    ',' if depth == 0 => flat += &format!("\n{root}::{}", std::mem::take(&mut name).trim()),
                    _ => {}
                }
                if depth == 0 && !matches!(x, ',' | '}') {
                    name.push(x);
                }
            }
            flat += &format!("\n{root}::{}", name.trim());
        }
    }
    flat
}

fn check(wrong: Vec<String>, rule: &str) {
    assert!(wrong.is_empty(), "{rule}:\n  {}\n", wrong.join("\n  "));
}

fn is_pure(source: &Source) -> bool {
    let mut opening = source.text.lines().take_while(|line| line.starts_with("//!"));
    PURE.iter().any(|p| source.name == *p || p.ends_with('/') && source.name.starts_with(p))
        || opening.any(|line| line.split([' ', '.', ':', ';']).any(|word| word == "Pure"))
}

#[test]
fn pure_modules_have_no_runtime_clock_environment_files_or_network() {
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|s| is_pure(s)) {
        // Parsing an address asks nobody.
        let code = flat_uses(&source.code).replace("std::net::Ip", "Ip");
        for (text, what) in IMPURE {
            wrong.extend(found(&code, text).iter().map(|(i, line)| format!("src/{}:{i}: {what}: {line}", source.name)));
        }
    }
    check(wrong, "these modules are pure: hand in what they need as an argument, from a shell");
}

#[test]
fn each_client_library_and_unsafe_code_has_one_place() {
    let mut wrong = Vec::new();
    for source in &sources() {
        for (text, place) in ONE_PLACE.iter().filter(|(_, place)| !source.name.starts_with(place)) {
            let hits = found(&source.code, text);
            wrong.extend(hits.iter().map(|(i, line)| format!("src/{}:{i}: only in src/{place}: {line}", source.name)));
        }
        if !UNSAFE.iter().any(|(place, _)| source.name.starts_with(place)) {
            let hits = found(&source.code, "unsafe");
            wrong.extend(hits.iter().map(|(i, line)| format!("src/{}:{i}: not in UNSAFE: {line}", source.name)));
        }
    }
    check(wrong, "what a library is to the rest of the program is said in one place");
}

#[test]
fn kafka_and_stores_know_nothing_of_the_archive() {
    let mut wrong = Vec::new();
    for source in &sources() {
        let others: &[&str] = match source.name.split('/').next() {
            Some("kafka") => {
                &["archive", "cli", "cut", "dialect", "format", "layout", "ledger", "restore", "routing", "store"]
            }
            Some("store") => {
                &["archive", "cli", "cut", "dialect", "format", "kafka", "ledger", "record", "restore", "routing"]
            }
            _ => continue,
        };
        let code = flat_uses(&source.code);
        for other in others {
            let hits = found(&code, &format!("crate::{other}"));
            wrong.extend(hits.iter().map(|(i, line)| format!("src/{}:{i}: {line}", source.name)));
        }
    }
    check(wrong, "these modules are used by the archive, not the other way round");
}

#[test]
fn nothing_panics_outside_tests() {
    let mut wrong = Vec::new();
    let mut used = vec![false; MAY_PANIC.len()];
    for source in &sources() {
        for text in PANICS {
            for (i, line) in found(&source.code, text) {
                match MAY_PANIC.iter().position(|(file, part, _)| source.name == *file && line.contains(part)) {
                    Some(entry) => used[entry] = true,
                    None => wrong.push(format!("src/{}:{i}: {line}", source.name)),
                }
            }
        }
    }
    for ((file, part, _), _) in MAY_PANIC.iter().zip(used).filter(|(_, used)| !used) {
        wrong.push(format!("MAY_PANIC in tests/architecture.rs: src/{file} has no `{part}` any more"));
    }
    check(wrong, "return an error, or add the line to MAY_PANIC with the reason why it cannot happen");
}

#[test]
fn files_are_short_and_open_with_what_they_own() {
    let mut wrong = Vec::new();
    for source in &sources() {
        let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
        let lines = source.text.lines().filter(is_code).count();
        if lines > LONGEST {
            wrong.push(format!("src/{}: {lines} lines of code, more than {LONGEST}: split it", source.name));
        }
        if !source.text.starts_with("//!") {
            wrong.push(format!("src/{}: begins without `//!`: say what it owns and what it does not", source.name));
        }
    }
    check(wrong, "a file is read in one go");
}

#[test]
fn the_reader_of_source_tells_code_from_comments_strings_and_tests() {
    let text = r##"// tokio
let a = "tokio \" tokio"; /* tokio /* */ tokio */ let b: &'static str = r#"tokio"#; let c = ['"', '\'', '\\'];
use std::{env, sync::{Arc, Mutex}, fs};
call().expect("tokio");
#[cfg(test)]
mod tests { fn f() { tokio(); } }
fn last() { tokio_stream::x(); my_tokio(); }
"##;
    let mut code = blank(text);
    without_tests(&mut code);
    assert_eq!(code.lines().count(), text.lines().count());
    assert!(found(&code, "tokio").is_empty(), "{code}");
    assert_eq!(found(&code, ".expect(").len(), 1);
    assert!(code.contains("let c = [") && code.contains("fn last()"), "{code}");
    let flat = flat_uses(&code);
    assert!(!found(&flat, "std::env").is_empty() && !found(&flat, "std::fs").is_empty(), "{flat}");
}
