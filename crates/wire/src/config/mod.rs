//! Configuration files: TOML, one for each role.
//!
//! Every key has a default, so an empty file is a configuration. A key that is not known is refused, with
//! the known one that it is nearest to: a misspelt limit that is silently ignored is found on the worst day.

mod coordinator;
mod dataset;
mod dataset_node;
mod door;
mod node;
mod router;

pub use coordinator::{CoordinationFile, CoordinatorFile};
pub use dataset::{BadRows, DatasetFile, KeyColumns};
pub use dataset_node::DatasetNodeFile;
pub use door::DoorFile;
pub use node::NodeFile;
pub use router::{HedgeFile, Place, RouterFile, RuleFile};

use partage_core::base::suggest;
use serde::de::DeserializeOwned;

/// A configuration file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A key that does not exist.
    #[error("{file}, line {line}: there is no key {key:?}{}", did_you_mean(nearest))]
    UnknownKey {
        /// The file as it was named.
        file: String,
        /// The line in the file, counted from 1.
        line: usize,
        /// The unknown key, as it stands in the file.
        key: String,
        /// The known one that it may have been meant to be, or all known ones.
        nearest: String,
    },
    /// No TOML, or a value of another type.
    #[error("{file}, line {line}: {what}")]
    Syntax {
        /// The file as it was named.
        file: String,
        /// The line in the file, counted from 1.
        line: usize,
        /// What is wrong there, as the TOML parser says it.
        what: String,
    },
    /// Values that make no sense.
    #[error("{file}: {what}")]
    Value {
        /// The file as it was named.
        file: String,
        /// What is wrong and how to mend it.
        what: String,
    },
}

fn did_you_mean(nearest: &str) -> String {
    if nearest.is_empty() { String::new() } else { format!(": did you mean {nearest:?}?") }
}

/// Reads `text`, which came from `file`.
pub fn parse<T: DeserializeOwned>(file: &str, text: &str) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = 1 + text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count();
        let (file, what) = (file.to_owned(), error.message().to_owned());
        match unknown_field(&what) {
            Some((key, nearest)) => ConfigError::UnknownKey { file, line, key, nearest },
            None => ConfigError::Syntax { file, line, what },
        }
    })
}

/// The unknown field that serde complains of, and the known one nearest to it. Serde puts every name
/// between backticks, the unknown one first; tested below, as its wording is not a promise.
pub(crate) fn unknown_field(complaint: &str) -> Option<(String, String)> {
    complaint.starts_with("unknown field").then_some(())?;
    let mut names = complaint.split('`').skip(1).step_by(2);
    let unknown = names.next()?.to_owned();
    let nearest = suggest::nearest(&unknown, names).unwrap_or_default().to_owned();
    Some((unknown, nearest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::base::settings::Settings;

    #[test]
    fn an_empty_file_is_a_configuration() {
        let file: CoordinatorFile = parse("c.toml", "").unwrap();
        assert_eq!(file.settings("c.toml", &Settings::default()).unwrap(), Settings::default());
        assert!(parse::<NodeFile>("n.toml", "").is_ok());
    }

    /// The section of the door is the same in each file: the page has it once, and no sample.
    fn without_door(told: String) -> String {
        told.replace(&format!("{:?}", DoorFile::default()), "")
    }

    /// The page of the book and its samples name every key, with the default where there is one.
    #[test]
    fn the_book_has_every_key_with_its_default() {
        let page = include_str!("../../../../docs/src/configuration.md");
        let text = include_str!("../../../../examples/config/coordinator.toml");
        let file: CoordinatorFile = parse("coordinator.toml", text).unwrap();
        let told = without_door(format!("{file:?}")).replace("coordination: None", "");
        assert!(!told.contains("None"), "a key is not in the sample: {file:?}");
        assert_eq!(file.settings("coordinator.toml", &Settings::default()).unwrap(), Settings::default());
        let keys = text.lines().filter_map(|line| line.split('#').next()?.split_once(" = "));
        for (key, value) in keys.filter(|(key, _)| !["data_dir", "id", "address"].contains(key)) {
            let row = format!("| `{key}` | `{}` |", value.trim());
            assert!(page.contains(&row), "the page has no row {row:?}");
        }
        let text = include_str!("../../../../examples/config/coordinator-of-three.toml");
        let file: CoordinatorFile = parse("coordinator-of-three.toml", text).unwrap();
        let coordination = file.coordination.unwrap();
        assert!(
            !format!("{coordination:?}").contains("None"),
            "a key is not in the sample: {coordination:?}"
        );
        for (key, _) in text.lines().filter_map(|line| line.split_once(" = ")) {
            assert!(page.contains(&format!("| `{key}` |")), "the page has no row for {key}");
        }
        let text = include_str!("../../../../examples/config/dataset-node.toml");
        let file: DatasetNodeFile = parse("dataset-node.toml", text).unwrap();
        let told = without_door(format!("{:?}", DatasetNodeFile { coordination: None, ..file.clone() }));
        assert!(file.coordination.is_some() && !file.datasets.is_empty());
        let coordinated = include_str!("../../../../examples/config/dataset-node-of-coordinator.toml");
        let of: DatasetNodeFile = parse("dataset-node-of-coordinator.toml", coordinated).unwrap();
        let own = format!("{:?}", (&of.id, &of.capacity, &of.zone, &of.rack, &of.let_go_s));
        assert!(!own.contains("None") && !of.coordinators.is_empty() && !of.labels.is_empty(), "{own}");
        // Those five, and the section that was taken out.
        assert_eq!(told.matches("None").count(), 6, "a key is in neither sample: {file:?}");
        for (key, _) in coordinated.lines().filter_map(|line| line.split_once(" = ")) {
            assert!(page.contains(&format!("| `{key}` |")), "the page has no row for {key}");
        }
        let own = text.split_once("\n[coordination]").unwrap().0;
        for (key, _) in own.lines().filter_map(|line| line.split_once(" = ")) {
            assert!(page.contains(&format!("| `{key}` |")), "the page has no row for {key}");
        }
        let text = include_str!("../../../../examples/config/node.toml");
        let file: NodeFile = parse("node.toml", text).unwrap();
        let told = without_door(format!("{file:?}"));
        assert!(!told.contains("None"), "a key is not in the sample: {file:?}");
        assert!(!file.labels.is_empty() && !file.coordinators.is_empty());
        for (key, _) in text.lines().filter_map(|line| line.split_once(" = ")) {
            assert!(page.contains(&format!("| `{key}` |")), "the page has no row for {key}");
        }
    }

    #[test]
    fn an_unknown_key_names_its_line_and_the_nearest_known_one() {
        let error =
            parse::<CoordinatorFile>("c.toml", "listen = \"127.0.0.1:1\"\nlease_mss = 5\n").unwrap_err();
        let expected = ConfigError::UnknownKey {
            file: "c.toml".into(),
            line: 2,
            key: "lease_mss".into(),
            nearest: "lease_ms".into(),
        };
        assert_eq!(error, expected);
        assert_eq!(
            error.to_string(),
            "c.toml, line 2: there is no key \"lease_mss\": did you mean \"lease_ms\"?"
        );
    }

    #[test]
    fn a_value_of_another_type_names_its_line() {
        let error = parse::<CoordinatorFile>("c.toml", "\n\nlease_ms = \"long\"").unwrap_err();
        assert!(matches!(error, ConfigError::Syntax { line: 3, .. }), "{error}");
    }

    #[test]
    fn contradictions_are_refused() {
        let file: CoordinatorFile = parse("c.toml", "lease_ms = 100\nheartbeat_ms = 100").unwrap();
        assert!(
            file.settings("c.toml", &Settings::default()).unwrap_err().to_string().contains("raise lease_ms")
        );
    }
}
