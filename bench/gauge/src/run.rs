//! One call of a bench: what it was told, where it works, and how it ends.

use crate::{complain, option, word};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tempfile::TempDir;

/// What all commands of a bench are told, and where they work.
#[derive(Debug)]
pub struct Run {
    words: Vec<String>,
    /// Gone at the end.
    temporary: TempDir,
}

impl Run {
    /// Of these words: `--folder FOLDER` says where its files lie, below a folder that is gone at the end.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn new(words: &[String]) -> std::io::Result<Run> {
        let temporary = match word(words, "--folder") {
            Some(folder) => TempDir::new_in(folder)?,
            None => TempDir::new()?,
        };
        Ok(Run { words: words.to_vec(), temporary })
    }

    /// Whether it only tries whether everything works.
    pub fn is_quick(&self) -> bool {
        self.words.iter().any(|word| word == "--quick")
    }

    /// A number that it was told; else a usual one, and a smaller one for a quick run.
    pub fn number(&self, name: &str, usual: u64, quick: u64) -> u64 {
        option(&self.words, name, if self.is_quick() { quick } else { usual })
    }

    /// Whether something is measured: without `--only` all is.
    pub fn measures(&self, name: &str) -> bool {
        word(&self.words, "--only").is_none_or(|only| only.split(',').any(|one| one == name))
    }

    /// A folder of that name, empty at first.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn folder(&self, name: &str) -> std::io::Result<PathBuf> {
        let folder = self.temporary.path().join(name);
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// Where all files lie that the run makes.
    pub fn place(&self) -> &Path {
        self.temporary.path()
    }
}

/// The code with which a bench ends; an error goes to stderr.
pub fn ended(done: Result<(), Box<dyn Error>>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error.to_string());
            ExitCode::FAILURE
        }
    }
}
