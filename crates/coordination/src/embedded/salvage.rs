//! What can be saved from a damaged directory. Only when a person asks; the store itself never guesses.
//!
//! [`inspect`] reads and reports. [`salvage`] writes what [`inspect`] found into a new directory, which
//! then opens as any other; [`save`] writes entries that the caller chose. Records before the damage are certain. Good
//! records after it are used too, but a key may have changed, or been deleted, in a record that is lost: so the report
//! says which keys are uncertain. Ephemeral keys are not saved; their owners are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use partage_journal::frame::{self, Found};
use partage_journal::{Disk, FileHeader, RealDisk};

use crate::error::{Error, Result};
use crate::key::Key;
use crate::transaction::{Entry, Version};
use crate::watch::Change;

use super::Options;
use super::journal::{IDENTITY, Journal, LOCK, decode_identity, failed, far_after, file_name, file_number};
use super::record::Record;
use super::tree::Tree;
use crate::claim::ClusterId;

pub use partage_journal::Damage;

/// One file of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileReport {
    /// Its path, with that of the directory in front.
    pub path: PathBuf,
    /// Its length when it was read.
    pub bytes: u64,
    /// Records in it that are good.
    pub good_records: u64,
    /// Every damaged stretch, in order.
    pub damage: Vec<Damage>,
    /// Where an unfinished write lies that the next open will drop; this is not damage.
    pub unfinished_at: Option<u64>,
}

/// What is in a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Its cluster, if any file still names it.
    pub cluster: Option<ClusterId>,
    /// The identity file, if it is there, then the journal files by their numbers.
    pub files: Vec<FileReport>,
    /// What can be saved.
    pub entries: BTreeMap<Key, Entry>,
    /// Those of `entries` that may be older than what was lost, or may have been deleted there. Empty
    /// if nothing is damaged.
    pub uncertain: BTreeSet<Key>,
    /// No version was given after this one.
    pub version: Version,
    /// Where each of `entries` was found: which of `files`, and the offset of its record.
    found: BTreeMap<Key, (usize, u64)>,
}

impl Report {
    /// True if the store would open.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        !self.files.is_empty() && self.files.iter().all(|file| file.damage.is_empty())
    }

    /// Where an entry was found: the file, and the offset of its record in it.
    #[must_use]
    pub fn found(&self, key: &Key) -> Option<(&Path, u64)> {
        let (file, offset) = self.found.get(key)?;
        Some((&self.files.get(*file)?.path, *offset))
    }

    /// The first damage: which file, and where.
    #[must_use]
    pub fn first_damage(&self) -> Option<(&Path, &Damage)> {
        self.files.iter().find_map(|file| Some((file.path.as_path(), file.damage.first()?)))
    }
}

/// Reads all of `dir`, changes nothing, and reports. Refused while a coordinator runs on it.
pub fn inspect(dir: &Path) -> Result<Report> {
    let disk = RealDisk;
    let names = disk.list(dir).map_err(|error| failed("list", dir, &error))?;
    // Not locked if there is no lock file, or no right to it: reading needs neither.
    let lock = names.iter().any(|name| name == LOCK).then(|| disk.lock(&dir.join(LOCK)));
    if let Some(Ok(None)) = lock {
        return Err(Error::InUse { dir: dir.to_owned() });
    }
    let mut report = Report::default();
    if names.iter().any(|name| name == IDENTITY) {
        inspect_identity(&disk, dir, &mut report)?;
    }
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| file_number(name)).collect();
    numbers.sort_unstable();
    if numbers.is_empty()
        && let Some(identity) = report.files.first_mut()
    {
        identity.damage.push(Damage::new(0, "the journal that belongs to it is missing from the directory"));
    }
    for number in numbers {
        let path = dir.join(file_name(number));
        let bytes = disk.read(&path).map_err(|error| failed("read", &path, &error))?;
        inspect_journal(path, number, &bytes, &mut report);
    }
    report.entries.retain(|_, entry| entry.session.is_none());
    let Report { uncertain, entries, found, .. } = &mut report;
    uncertain.retain(|key| entries.contains_key(key));
    found.retain(|key, _| entries.contains_key(key));
    Ok(report)
}

/// Writes what [`inspect`] finds in `dir` into `out_dir`, which must be empty or new, and returns the report.
pub fn salvage(dir: &Path, out_dir: &Path) -> Result<Report> {
    let report = inspect(dir)?;
    save(out_dir, report.cluster, &report.entries, report.version)?;
    Ok(report)
}

/// Makes `out_dir`, which must be empty or new, the directory of a store with these entries, of which none
/// has a version above `version`. Without a `cluster` it is a new one.
pub fn save(
    out_dir: &Path,
    cluster: Option<ClusterId>,
    entries: &BTreeMap<Key, Entry>,
    version: Version,
) -> Result<()> {
    let disk = Arc::new(RealDisk);
    disk.create_dir(out_dir).map_err(|error| failed("create", out_dir, &error))?;
    let names = disk.list(out_dir).map_err(|error| failed("list", out_dir, &error))?;
    if !names.is_empty() {
        let what = format!("`{}` is not empty: name a new directory", out_dir.display());
        return Err(Error::Invalid { what });
    }
    let as_change = |(key, entry): (&Key, &Entry)| Change { key: key.clone(), entry: Some(entry.clone()) };
    let tree = Tree::from_snapshot(entries.iter().map(as_change).collect(), version);
    let options = Options { cluster, ..Options::default() };
    Journal::begin(disk, out_dir, &options, Box::new(()), tree)?;
    Ok(())
}

fn inspect_identity(disk: &RealDisk, dir: &Path, report: &mut Report) -> Result<()> {
    let path = dir.join(IDENTITY);
    let bytes = disk.read(&path).map_err(|error| failed("read", &path, &error))?;
    let mut damage = Vec::new();
    match decode_identity(&bytes) {
        Ok(cluster) => report.cluster = Some(ClusterId(cluster)),
        Err(found) => damage.push(found),
    }
    let bytes = bytes.len() as u64;
    report.files.push(FileReport { path, bytes, good_records: 0, damage, unfinished_at: None });
    Ok(())
}

fn inspect_journal(path: PathBuf, number: u64, bytes: &[u8], report: &mut Report) {
    let mut file = FileReport {
        path,
        bytes: bytes.len() as u64,
        good_records: 0,
        damage: Vec::new(),
        unfinished_at: None,
    };
    match FileHeader::decode(bytes) {
        Ok(header) => {
            report.cluster.get_or_insert(ClusterId(header.owner));
            if !bytes.len().is_multiple_of(header.step as usize) {
                file.damage
                    .push(Damage::new(bytes.len(), "the file was cut: it ends at no multiple of its step"));
            }
        }
        Err(damage) => file.damage.push(damage),
    }
    let (mut at, mut expected) = (frame::FILE_HEADER, 1);
    let mut saved = Saved { report, in_snapshot: true, snapshot: BTreeMap::new(), whole: true };
    loop {
        let (start, found) = match frame::find(bytes, number, at, expected) {
            Ok(found) => (at, found),
            Err(damage) => {
                file.damage.push(damage);
                saved.lose();
                match frame::find_any(bytes, number, at) {
                    Some((start, found)) => {
                        name_all(&mut file.damage, expected, &found);
                        (start, found)
                    }
                    None => break,
                }
            }
        };
        match found {
            Found::Record { payload, number: record_number, next } => {
                match Record::decode(payload) {
                    Ok(record) => {
                        saved.take(record, start as u64);
                        file.good_records += 1;
                    }
                    Err(what) => {
                        file.damage.push(Damage::new(start, what));
                        saved.lose();
                    }
                }
                (at, expected) = (next, record_number + 1);
            }
            Found::End => break,
            Found::Torn => {
                file.unfinished_at = Some(at as u64);
                break;
            }
        }
    }
    saved.end();
    if !file.damage.is_empty() {
        report.version = far_after(report.version, bytes.len() as u64);
    }
    report.files.push(file);
}

/// Names every record that was lost before the next good one: a stretch of damage may hold several.
fn name_all(damage: &mut [Damage], first: u64, next: &Found) {
    if let (Some(damage), Found::Record { number, .. }) = (damage.last_mut(), next)
        && *number > first + 1
    {
        damage.what.push_str(&format!("; records {first} to {} are lost", number - 1));
    }
}

/// What has been saved so far, while one file is read.
struct Saved<'a> {
    report: &'a mut Report,
    in_snapshot: bool,
    snapshot: BTreeMap<Key, Entry>,
    /// False once something of this file was lost.
    whole: bool,
}

impl Saved<'_> {
    fn take(&mut self, record: Record, offset: u64) {
        let place = (self.report.files.len(), offset);
        match record {
            Record::Snapshot(entries) => {
                let entries = entries.into_iter().filter_map(|change| Some((change.key, change.entry?)));
                for (key, entry) in entries {
                    self.report.version = self.report.version.max(entry.version);
                    self.report.found.insert(key.clone(), place);
                    self.snapshot.insert(key, entry);
                }
            }
            Record::SnapshotEnd(at) => {
                self.report.version = self.report.version.max(at);
                self.end();
            }
            Record::Batch(transactions) => {
                self.end();
                for committed in transactions {
                    self.report.version = self.report.version.max(committed.at);
                    for Change { key, entry } in committed.changes {
                        // Written after what was lost, as far as has been read: certain again.
                        self.report.uncertain.remove(&key);
                        self.report.found.insert(key.clone(), place);
                        match entry {
                            Some(entry) => self.report.entries.insert(key, entry),
                            None => self.report.entries.remove(&key),
                        };
                    }
                }
            }
        }
    }

    /// Ends the snapshot: if whole, it replaces the entries of older files; else it adds to them.
    fn end(&mut self) {
        if !std::mem::replace(&mut self.in_snapshot, false) {
            return;
        }
        if self.whole {
            self.report.entries.clear();
            self.report.uncertain.clear();
        }
        self.report.entries.append(&mut self.snapshot);
    }

    /// Something was lost here: every key known so far may have changed in it.
    fn lose(&mut self) {
        self.whole = false;
        let keys = self.report.entries.keys().chain(self.snapshot.keys()).cloned();
        self.report.uncertain.extend(keys.collect::<Vec<_>>());
    }
}
