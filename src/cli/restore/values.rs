//! Corrected values, as users give them: files named as the records are, or JSON lines.

use crate::error::{Error, Result};
use crate::filter::parse_id;
use crate::restore::values::Values;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The values of `--value-from-dir` or `--value-from`; none without both.
///
/// # Errors
/// [`crate::Kind::Config`] for what cannot be read, is no value, or has none.
pub fn read(dir: Option<&Path>, file: Option<&Path>) -> Result<Values> {
    let mut values = Values::default();
    if let Some(dir) = dir {
        let flag = format!("--value-from-dir {}", dir.display());
        of_dir(dir, &mut values).map_err(|e| e.context(&flag))?;
        if values.is_empty() {
            return Err(Error::config(format!("{flag} has no file: they are named DIR/TOPIC/PARTITION/OFFSET")));
        }
    }
    if let Some(file) = file {
        let flag = format!("--value-from {}", file.display());
        let mut text = String::new();
        let read = match file.to_str() {
            Some("-") => std::io::stdin().read_to_string(&mut text).map(drop),
            _ => std::fs::read_to_string(file).map(|read| text = read),
        };
        read.map_err(|e| Error::config(format!("{flag}: cannot be read: {e}")))?;
        values.add_lines(&text).map_err(|e| e.context(&flag))?;
        if values.is_empty() {
            return Err(Error::config(format!("{flag} has no line")));
        }
    }
    Ok(values)
}

fn of_dir(dir: &Path, values: &mut Values) -> Result<()> {
    let unreadable = |path: &Path, e: std::io::Error| Error::config(format!("{}: cannot be read: {e}", path.display()));
    let entries = |path: &Path| -> Result<Vec<PathBuf>> {
        let found = std::fs::read_dir(path).and_then(|found| found.map(|f| f.map(|f| f.path())).collect());
        let mut found: Vec<PathBuf> = found.map_err(|e| unreadable(path, e))?;
        found.sort();
        Ok(found)
    };
    for topic in entries(dir)? {
        for partition in entries(&topic)? {
            for file in entries(&partition)? {
                let id = file.strip_prefix(dir).unwrap_or(&file);
                let id = parse_id(&id.to_string_lossy()).map_err(|e| e.context(file.display()))?;
                values.add(id, Some(std::fs::read(&file).map_err(|e| unreadable(&file, e))?))?;
            }
        }
    }
    Ok(())
}
