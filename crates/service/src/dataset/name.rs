//! Names of datasets and of their versions: `[-_a-zA-Z0-9]+` (S5).
//!
//! Narrower than other names of the cluster ([`partage_core::base::name`]): each is a folder of the source, a folder of the local
//! store, a segment of a key of the coordination service and a segment of a URL, and is compared with what stands
//! there byte by byte. Versions are ordered by their bytes, and the highest wins; so `10` is below `9`, and batch jobs
//! name versions by dates.

use partage_core::limits;
use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// Why a string names no dataset and no version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DatasetNameError {
    /// The name is the empty string.
    #[error("the name of a {what} is empty: give it 1 to {max} characters", max = limits::NAME_BYTES)]
    Empty {
        /// What it was to name: `dataset` or `version`.
        what: &'static str,
    },
    /// More than [`limits::NAME_BYTES`] bytes.
    #[error("the name of a {what} has {bytes} bytes, the limit is {max}: shorten it", max = limits::NAME_BYTES)]
    TooLong {
        /// What it was to name: `dataset` or `version`.
        what: &'static str,
        /// The length of the name, in bytes.
        bytes: usize,
    },
    /// What has its own meaning in the paths of a dataset node.
    #[error("no dataset is named \"-\": below /-/ a node answers for itself; rename the folder")]
    Reserved,
    /// A character that no name may hold.
    #[error("the {what} {name:?} has {found:?} at byte {at}: use letters, digits, - and _ only")]
    Character {
        /// What it was to name: `dataset` or `version`.
        what: &'static str,
        /// The name that was given.
        name: String,
        /// The first character that no name may hold.
        found: char,
        /// Where that character is in the name, in bytes.
        at: usize,
    },
}

fn check(what: &'static str, name: &str) -> Result<(), DatasetNameError> {
    if name.is_empty() {
        return Err(DatasetNameError::Empty { what });
    }
    if name.len() > limits::NAME_BYTES {
        return Err(DatasetNameError::TooLong { what, bytes: name.len() });
    }
    if what == "dataset" && name == "-" {
        return Err(DatasetNameError::Reserved);
    }
    match name.char_indices().find(|(_, c)| !(c.is_ascii_alphanumeric() || "-_".contains(*c))) {
        Some((at, found)) => Err(DatasetNameError::Character { what, name: name.to_owned(), found, at }),
        None => Ok(()),
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(Arc<str>);

        impl $type {
            /// Checks the rule of this module and keeps the name.
            ///
            /// # Errors
            /// [`DatasetNameError`], with the offending character.
            pub fn new(name: &str) -> Result<Self, DatasetNameError> {
                check($what, name)?;
                Ok(Self(name.into()))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $type {
            type Err = DatasetNameError;
            fn from_str(name: &str) -> Result<Self, DatasetNameError> {
                Self::new(name)
            }
        }
    };
}

name!(
    /// Name of a dataset: the folder below the source.
    DatasetName, "dataset"
);
name!(
    /// Name of a version of a dataset: the folder below the dataset's. The highest by bytes is the latest.
    VersionName, "version"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s5_letters_digits_dash_and_underscore() {
        assert!(DatasetName::new("baby-names_2").is_ok());
        assert!(DatasetName::new(&"x".repeat(limits::NAME_BYTES)).is_ok());
        for bad in
            ["", "a/b", "..", "a.b", "%2e", "a\0", "é", "a@b", "a b", &"x".repeat(limits::NAME_BYTES + 1)]
        {
            assert!(DatasetName::new(bad).is_err() && VersionName::new(bad).is_err(), "{bad:?}");
        }
        assert_eq!(DatasetName::new("-"), Err(DatasetNameError::Reserved));
        assert!(DatasetName::new("--").is_ok() && VersionName::new("-").is_ok());
        let told = VersionName::new("2024.01").unwrap_err().to_string();
        assert!(told.contains("version \"2024.01\"") && told.contains("byte 4"), "{told}");
    }

    #[test]
    fn s5_versions_are_ordered_by_bytes() {
        let mut versions = ["20240102", "9", "10", "20231231"].map(|v| VersionName::new(v).unwrap());
        versions.sort();
        assert_eq!(versions.map(|v| v.to_string()), ["10", "20231231", "20240102", "9"]);
    }
}
