//! A path into a document that stands alone: which field of its rows an index is of. It is written as the paths of filters are.

use super::Step;
use super::parse;
use partage_core::limits::INDEX_PATH_BYTES;
use std::fmt;

/// Where in a document something is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    text: String,
    steps: Vec<Step>,
}

/// Why a text is no path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// It is longer than it may be.
    #[error("the path has {0} bytes, and may have {max}", max = INDEX_PATH_BYTES)]
    TooLong(usize),
    /// It is not of the form.
    #[error("the path is not understood at character {at}: {what}")]
    Form {
        /// The character, counted from 1.
        at: usize,
        /// What is wrong there, and what would do.
        what: String,
    },
}

impl Path {
    /// Reads a path, such as `author.names[0]`; `$` is the whole document.
    ///
    /// # Errors
    /// What is wrong, and at which character.
    pub fn parse(text: &str) -> Result<Path, PathError> {
        if text.len() > INDEX_PATH_BYTES {
            return Err(PathError::TooLong(text.len()));
        }
        let steps = parse::path(text).map_err(|error| PathError::Form { at: error.at, what: error.what })?;
        Ok(Path { text: text.trim().to_owned(), steps })
    }

    /// The steps, from the whole document on.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }
}

impl fmt::Display for Path {
    /// As it was given: [`Path::parse`] gives the same path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_filters() {
        let field = |name: &str| Step::Field(name.to_owned());
        let steps = |text| Path::parse(text).map(|path| path.steps().to_vec());
        assert_eq!(steps("section"), Ok(vec![field("section")]));
        assert_eq!(steps(" a.\"b c\"[3].d "), Ok(vec![field("a"), field("b c"), Step::Item(3), field("d")]));
        assert_eq!(steps("$"), Ok(vec![]));
        assert_eq!(Path::parse(" a.b ").map(|path| path.to_string()), Ok("a.b".to_owned()));
        for (bad, at) in [("", 1), ("a.", 3), ("a b", 3), ("a[x]", 3), ("and", 1)] {
            assert!(
                matches!(Path::parse(bad), Err(PathError::Form { at: found, .. }) if found == at),
                "{bad}"
            );
        }
        let most = "a".repeat(INDEX_PATH_BYTES);
        assert!(Path::parse(&most).is_ok());
        assert_eq!(Path::parse(&(most + "a")), Err(PathError::TooLong(INDEX_PATH_BYTES + 1)));
    }
}
