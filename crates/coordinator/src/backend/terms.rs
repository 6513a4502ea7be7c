//! The highest term that this coordinator has seen, kept over its restarts.
//!
//! ```text
//!  <data dir>/terms/<cluster>
//! ```
//!
//! The backend counts terms. When somebody sets its count back, or restores the backend from an older state, it would
//! give a term a second time, and what is stored elsewhere under that term could not tell two leaders apart. So each
//! coordinator keeps the highest term on a disk of its own, and leads above that one only. One file for each cluster:
//! a root that was restored from a backup is another cluster's, and counts anew.
//!
//! Without a data directory the term is remembered for as long as the process lives.

use crate::backend::store::StoreError;
use partage_coordination::{ClusterId, Term};
use partage_wire::stored::term;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Mutex;

/// Where the files of all clusters are, below a data directory.
const TERMS: &str = "terms";

/// The highest term.
#[derive(Debug)]
pub struct Terms {
    file: Option<PathBuf>,
    highest: AtomicU64,
    /// The highest that is in the file.
    kept: AtomicU64,
    /// Held while the file is written.
    writing: Mutex<()>,
}

impl Terms {
    /// What is kept in `data_dir` for that cluster; without either, nothing is known and nothing is kept.
    ///
    /// # Errors
    /// When the file cannot be read. A damaged one is set aside, and said so: the backend's count is most likely right.
    pub fn open(data_dir: Option<&Path>, cluster: Option<ClusterId>) -> Result<Terms, StoreError> {
        let file = data_dir.zip(cluster).map(|(dir, cluster)| dir.join(TERMS).join(cluster.to_string()));
        let highest = match &file {
            Some(path) => read(path)?,
            None => 0,
        };
        Ok(Terms {
            file,
            highest: AtomicU64::new(highest),
            kept: AtomicU64::new(highest),
            writing: Mutex::default(),
        })
    }

    /// The highest that was seen.
    pub fn highest(&self) -> Term {
        Term::new(self.highest.load(Ordering::Relaxed))
    }

    /// `term` was seen. It counts from now on; returns when that is durable.
    ///
    /// # Errors
    /// When the file cannot be written: then the term is remembered for as long as the process lives.
    pub async fn keep(&self, term: Term) -> Result<(), StoreError> {
        self.highest.fetch_max(term.get(), Ordering::Relaxed);
        let _writing = self.writing.lock().await;
        if term.get() <= self.kept.load(Ordering::Relaxed) {
            return Ok(());
        }
        if let Some(path) = self.file.clone() {
            let at = path.clone();
            let written = tokio::task::spawn_blocking(move || write(&path, term.get())).await;
            written.map_err(io::Error::other).flatten().map_err(|error| failed(&at, &error))?;
        }
        self.kept.store(term.get(), Ordering::Relaxed);
        Ok(())
    }
}

fn failed(path: &Path, error: &io::Error) -> StoreError {
    let what = format!("the highest term cannot be kept there: {error}; see to the directory and its room");
    StoreError::Terms { path: path.to_owned(), what }
}

fn read(path: &Path) -> Result<u64, StoreError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(failed(path, &error)),
    };
    if let Some(term) = term::open(&bytes) {
        return Ok(term);
    }
    let aside = path.with_extension("damaged");
    fs::rename(path, &aside).map_err(|error| failed(path, &error))?;
    tracing::error!(
        file = %path.display(), aside = %aside.display(),
        "the highest term that this coordinator has seen is damaged, and was set aside: it goes by the backend's count"
    );
    Ok(0)
}

/// Beside it, then in its place: a crash leaves the one or the other.
fn write(path: &Path, term: u64) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let beside = path.with_extension("new");
    let mut file = File::create(&beside)?;
    file.write_all(term::seal(term).as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_highest_term_is_there_after_a_restart_for_its_cluster_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (Some(ClusterId(1)), Some(ClusterId(2)));
        let terms = Terms::open(Some(dir.path()), one).unwrap();
        assert_eq!(terms.highest(), Term::new(0));
        for term in [3, 30, 4] {
            terms.keep(Term::new(term)).await.unwrap();
        }
        assert_eq!(Terms::open(Some(dir.path()), one).unwrap().highest(), Term::new(30));
        assert_eq!(Terms::open(Some(dir.path()), other).unwrap().highest(), Term::new(0));
        assert_eq!(Terms::open(None, one).unwrap().highest(), Term::new(0));
    }

    #[tokio::test]
    async fn a_term_that_could_not_be_written_counts_all_the_same_and_is_written_later() {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Some(ClusterId(1));
        let terms = Terms::open(Some(dir.path()), cluster).unwrap();
        fs::write(dir.path().join(TERMS), b"a file in the place of the folder").unwrap();
        assert!(terms.keep(Term::new(30)).await.is_err());
        assert_eq!(terms.highest(), Term::new(30));
        fs::remove_file(dir.path().join(TERMS)).unwrap();
        terms.keep(Term::new(30)).await.unwrap();
        assert_eq!(Terms::open(Some(dir.path()), cluster).unwrap().highest(), Term::new(30));
    }

    #[tokio::test]
    async fn d8_a_damaged_term_is_set_aside_and_the_next_one_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Some(ClusterId(1));
        let terms = Terms::open(Some(dir.path()), cluster).unwrap();
        terms.keep(Term::new(30)).await.unwrap();
        let path = terms.file.clone().unwrap();
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs::write(&path, &bytes).unwrap();
            assert_eq!(read(&path).unwrap(), 0, "byte {at}");
            assert!(!path.exists(), "byte {at}");
        }
        let terms = Terms::open(Some(dir.path()), cluster).unwrap();
        terms.keep(Term::new(31)).await.unwrap();
        assert_eq!(read(&path).unwrap(), 31);
    }
}
