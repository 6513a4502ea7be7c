//! Rows that are no records: how many a version may have, and where they are listed.
//!
//! A few rows of a file may be no records. They are skipped, and listed with their place and what is wrong with them; when
//! there are too many of them the load fails.
//!
//! A row counts once, however often its file is read. Its place and the reason are listed, not what stands in it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use serde_json::json;

use super::Error;
use crate::format::{FormatError, Place};
use crate::limits::REJECT_BYTES;

/// The list of a version's bad rows, beside its store files.
pub const REJECTS: &str = "_rejects.jsonl";

/// How many rows may be bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tolerance {
    /// So many rows of all the files that are read together.
    Rows(u64),
    /// So many rows in a million of each file that is read, 1 to 1,000,000.
    PerMillion(u32),
}

impl Default for Tolerance {
    fn default() -> Tolerance {
        Tolerance::Rows(0)
    }
}

impl Tolerance {
    /// Whether any may be.
    pub fn is_some(self) -> bool {
        self != Tolerance::default()
    }
}

/// Neither a number nor a share.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "max_bad_rows = {given:?} is neither a number of rows, such as 10, nor a share of them, such as 0.5%"
)]
pub struct UnknownTolerance {
    /// As given, cut to 64 characters.
    pub given: String,
}

impl FromStr for Tolerance {
    type Err = UnknownTolerance;

    fn from_str(text: &str) -> Result<Tolerance, UnknownTolerance> {
        let unknown = || UnknownTolerance { given: text.chars().take(64).collect() };
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let Some(percent) = text.strip_suffix('%') else {
            return text.parse().ok().filter(|_| is_number(text)).map(Tolerance::Rows).ok_or_else(unknown);
        };
        // In decimal: four digits behind the point are a millionth.
        let (whole, part) = percent.split_once('.').unwrap_or((percent, "0"));
        let is_share = is_number(whole) && is_number(part) && !part.is_empty() && part.len() <= 4;
        let number = |text: &str| text.parse::<u32>().ok().filter(|_| is_share);
        let part = number(&format!("{part:0<4}")).ok_or_else(unknown)?;
        let whole = number(whole).filter(|whole| *whole <= 100).ok_or_else(unknown)?;
        match whole * 10_000 + part {
            0 => Ok(Tolerance::default()),
            share @ 1..=1_000_000 => Ok(Tolerance::PerMillion(share)),
            _ => Err(unknown()),
        }
    }
}

impl std::fmt::Display for Tolerance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Tolerance::Rows(rows) => write!(f, "{rows}"),
            Tolerance::PerMillion(share) => write!(f, "{}%", f64::from(*share) / 10_000.0),
        }
    }
}

/// The bad rows of a load.
#[derive(Debug)]
pub struct Rejects {
    tolerance: Tolerance,
    path: PathBuf,
    listed: Mutex<RejectList>,
}

#[derive(Debug, Default)]
struct RejectList {
    /// The most bad rows that one reading of a file has found, by the file's number.
    files: BTreeMap<u32, u64>,
    rows: u64,
    bytes: usize,
    /// Once there is one.
    list: Option<File>,
}

impl Rejects {
    /// The bad rows of one load, listed in a folder when there are any.
    pub fn new(tolerance: Tolerance, folder: &Path) -> Rejects {
        Rejects { tolerance, path: folder.join(REJECTS), listed: Mutex::default() }
    }

    /// How many there are so far.
    pub fn rows(&self) -> u64 {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner).rows
    }

    /// The path of the file that lists them.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A row is bad: the `count`th, from 1, that this reading has found in the file of this number.
    ///
    /// # Errors
    /// The row's own where none may be bad, or none of that kind; else that there are too many.
    pub fn add(&self, file: u32, count: u64, row: FormatError) -> Result<(), Error> {
        if !self.tolerance.is_some() || !row.reason.is_of_row() {
            return Err(Error::of_format(row));
        }
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        let known = listed.files.entry(file).or_default();
        if count <= *known {
            return Ok(());
        }
        *known = count;
        listed.rows += 1;
        self.list(&mut listed, &row)?;
        match self.tolerance {
            Tolerance::Rows(limit) if listed.rows > limit => {
                Err(self.too_many(format!("{} rows so far", listed.rows), row.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// A file was read to its end: so many of its rows are bad, of so many.
    ///
    /// # Errors
    /// That these are too many.
    pub fn check(&self, file: &str, bad: u64, rows: u64) -> Result<(), Error> {
        match self.tolerance {
            Tolerance::PerMillion(share)
                if u128::from(bad) * 1_000_000 > u128::from(rows) * u128::from(share) =>
            {
                Err(self.too_many(format!("{bad} of {rows} rows"), file.to_owned()))
            }
            _ => Ok(()),
        }
    }

    fn too_many(&self, found: String, last: String) -> Error {
        Error::BadRows { found, last, limit: self.tolerance, list: self.path.clone() }
    }

    fn list(&self, listed: &mut RejectList, row: &FormatError) -> Result<(), Error> {
        if listed.bytes >= REJECT_BYTES {
            return Ok(());
        }
        let (name, place) = match row.place {
            Place::Line(line) => ("line", line),
            Place::Row(row) => ("row", row),
            Place::Offset(offset) => ("offset", offset),
        };
        let mut line = json!({ "file": row.file, name: place, "reason": row.reason.to_string() }).to_string();
        line.push('\n');
        listed.bytes += line.len();
        if listed.bytes >= REJECT_BYTES {
            line.push_str("{\"reason\":\"the list is full: further rows are counted and not listed\"}\n");
        }
        let disk = |error| Error::of_disk(&self.path, error);
        if listed.list.is_none() {
            listed.list = Some(File::create(&self.path).map_err(disk)?);
        }
        listed.list.as_mut().map_or(Ok(()), |list| list.write_all(line.as_bytes())).map_err(disk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Format, Reason};

    fn row(line: u64) -> FormatError {
        let reason = Reason::Malformed { format: Format::Csv, how: "2 fields".to_owned() };
        FormatError { file: "part-0.csv".to_owned(), place: Place::Line(line), reason }
    }

    #[test]
    fn numbers_and_shares_are_read() {
        for (text, tolerance) in [
            ("0", Tolerance::Rows(0)),
            ("12", Tolerance::Rows(12)),
            ("0%", Tolerance::Rows(0)),
            ("0.5%", Tolerance::PerMillion(5_000)),
            ("0.0001%", Tolerance::PerMillion(1)),
            ("100%", Tolerance::PerMillion(1_000_000)),
        ] {
            assert_eq!(text.parse(), Ok(tolerance), "{text}");
        }
        for bad in ["", "-1", "+1", "1.5", "%", ".5%", "1.%", "100.1%", "0.00001%", "-1%", "1e3", "x"] {
            assert!(bad.parse::<Tolerance>().unwrap_err().to_string().contains("0.5%"), "{bad}");
        }
        assert_eq!(Tolerance::PerMillion(5_000).to_string(), "0.5%");
    }

    #[test]
    fn a_row_counts_once_and_is_listed_with_place_and_reason() {
        let folder = tempfile::tempdir().unwrap();
        let rejects = Rejects::new(Tolerance::Rows(2), folder.path());
        // The file is read twice, as where not all partitions are built at a time.
        for _ in 0..2 {
            rejects.add(7, 1, row(3)).unwrap();
            rejects.add(7, 2, row(9)).unwrap();
        }
        assert_eq!(rejects.rows(), 2);
        let told = rejects.add(8, 1, row(4)).unwrap_err().to_string();
        assert!(
            told.contains("3 rows") && told.contains("max_bad_rows = 2") && told.contains(REJECTS),
            "{told}"
        );
        let list = std::fs::read_to_string(rejects.path()).unwrap();
        let lines: Vec<serde_json::Value> =
            list.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[1]["line"], 9);
        assert_eq!(lines[1]["file"], "part-0.csv");
        assert_eq!(lines[1]["reason"], "not a CSV file: 2 fields");
    }

    #[test]
    fn a_share_is_of_each_file() {
        let folder = tempfile::tempdir().unwrap();
        let rejects = Rejects::new(Tolerance::PerMillion(10_000), folder.path());
        rejects.check("a", 1, 100).unwrap();
        let told = rejects.check("a", 2, 199).unwrap_err().to_string();
        assert!(told.contains("2 of 199 rows") && told.contains("1%"), "{told}");
        rejects.check("b", 0, 0).unwrap();
    }

    #[test]
    fn the_list_has_a_bound_and_none_is_made_for_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let strict = Rejects::new(Tolerance::default(), folder.path());
        assert!(strict.add(0, 1, row(1)).unwrap_err().to_string().starts_with("part-0.csv: line 1: "));
        assert!(!strict.path().exists());
        let rejects = Rejects::new(Tolerance::Rows(u64::MAX), folder.path());
        let cut = Reason::CutOff { what: "a quoted field" };
        let fatal = FormatError { file: "f".to_owned(), place: Place::Line(1), reason: cut };
        assert!(rejects.add(0, 1, fatal).unwrap_err().to_string().contains("cut off"));
        rejects.listed.lock().unwrap().bytes = REJECT_BYTES - 1;
        rejects.add(0, 1, row(1)).unwrap();
        rejects.add(0, 2, row(2)).unwrap();
        let list = std::fs::read_to_string(rejects.path()).unwrap();
        assert_eq!((list.lines().count(), rejects.rows()), (2, 2));
        assert!(list.ends_with("not listed\"}\n"), "{list}");
    }
}
