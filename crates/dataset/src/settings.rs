//! What a dataset is: the settings that lie beside its versions in the source, checked.

use crate::build;
use crate::catalogue::Options as Served;
use crate::format::{Columns, Format, Options as Read, UnknownFormat};
use crate::limits::SETTINGS_BYTES;
use partage_core::dataset::node::Guard;
use partage_core::dataset::{Dealing, Replication, ReplicationError, UnknownDealing};
use partage_engine::readonly::{Compression, Layout};
use partage_wire::config::{self, ConfigError, DatasetFile};

/// The file of the settings, in the dataset's folder. Its name begins with `_`, so it is no version.
pub const FILE: &str = "_dataset.toml";

/// Of zstd, when nobody says.
const LEVEL: i32 = 3;

/// Everything that is said of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetSettings {
    /// How its files are read.
    pub read: Read,
    /// Whether files of one partition are recognised by a sample.
    pub is_sampled: bool,
    /// How its store files are laid out.
    pub layout: Layout,
    /// How its store files are compressed.
    pub compression: Compression,
    /// `content-type` of its values.
    pub content_type: String,
    /// Whether a version counts only when it has a `_SUCCESS`.
    pub needs_success: bool,
    /// Whether it is served at all.
    pub is_served: bool,
    /// How it is spread over the nodes, where it says so.
    pub spread: SpreadSettings,
    /// Which versions a person must release.
    pub guard: Guard,
}

/// How a dataset is spread over the nodes; what is not said here is as the node is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpreadSettings {
    /// See [`Replication::wanted`].
    pub replication: Option<u32>,
    /// See [`Replication::min`].
    pub min_replication: Option<u32>,
    /// See [`Replication::max`].
    pub max_replication: Option<u32>,
    /// How partitions are dealt.
    pub dealing: Option<Dealing>,
}

impl SpreadSettings {
    /// The node's, with what is said here in its place.
    ///
    /// # Errors
    /// When they do not go together.
    pub fn over(&self, node: Replication) -> Result<Replication, ReplicationError> {
        let replication = Replication {
            wanted: self.replication.unwrap_or(node.wanted),
            min: self.min_replication.unwrap_or(node.min),
            max: self.max_replication.or(node.max),
        };
        replication.check()?;
        Ok(replication)
    }
}

impl Default for DatasetSettings {
    fn default() -> DatasetSettings {
        DatasetSettings {
            read: Read::default(),
            is_sampled: true,
            layout: Layout::Hashed,
            compression: Compression::None,
            content_type: Served::default().content_type,
            needs_success: false,
            is_served: true,
            spread: SpreadSettings::default(),
            guard: Guard::default(),
        }
    }
}

/// Settings that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// No TOML, or a key that is not known.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No text.
    #[error(
        "{file}: it is not UTF-8 text of at most {SETTINGS_BYTES} bytes: write TOML, see the book's page on sources"
    )]
    NoText {
        /// Which.
        file: String,
    },
    /// A format that there is not.
    #[error("{file}: {why}")]
    Format {
        /// Which.
        file: String,
        /// What is wrong.
        why: UnknownFormat,
    },
    /// A word that is none of those that may stand there.
    #[error("{file}: {key} = {value:?} is none of {known}")]
    Word {
        /// Which.
        file: String,
        /// Which key.
        key: &'static str,
        /// As given, cut to 64 characters.
        value: String,
        /// What may stand there.
        known: &'static str,
    },
    /// A dealing that there is not.
    #[error("{file}: {why}")]
    Dealing {
        /// Which.
        file: String,
        /// What is wrong.
        why: UnknownDealing,
    },
    /// Numbers of replicas that do not go together, whatever the node is told.
    #[error("{file}: {why}")]
    Replication {
        /// Which.
        file: String,
        /// What is wrong.
        why: ReplicationError,
    },
    /// A level without zstd, or out of range.
    #[error("{file}: level = {level} goes with compression = \"zstd\" and is 1 to 19")]
    Level {
        /// Which.
        file: String,
        /// As given.
        level: i32,
    },
    /// More than all.
    #[error(
        "{file}: max_shrink_percent = {percent} is not 0 to 100; with 100 a version may lose all of its keys"
    )]
    Percent {
        /// Which.
        file: String,
        /// As given.
        percent: u32,
    },
    /// Columns that a SequenceFile does not have.
    #[error("{file}: a SequenceFile has no columns: leave out key, values and header")]
    NoColumns {
        /// Which.
        file: String,
    },
    /// It would break the header.
    #[error("{file}: content_type = {value:?} is none: use visible ASCII, such as text/plain")]
    ContentType {
        /// Which.
        file: String,
        /// As given.
        value: String,
    },
}

impl From<&DatasetSettings> for build::Options {
    fn from(settings: &DatasetSettings) -> build::Options {
        let DatasetSettings { read, is_sampled, layout, compression, .. } = settings;
        build::Options {
            format: read.clone(),
            is_sampled: *is_sampled,
            layout: *layout,
            compression: *compression,
            ..build::Options::default()
        }
    }
}

impl DatasetSettings {
    /// Reads the bytes of a settings file; `name` is how errors call it.
    ///
    /// # Errors
    /// What is wrong with it, and what may stand there.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<DatasetSettings, SettingsError> {
        let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= SETTINGS_BYTES);
        let text = text.ok_or_else(|| SettingsError::NoText { file: name.to_owned() })?;
        DatasetSettings::check(name, config::parse(name, text)?)
    }

    /// Checks what a file says.
    ///
    /// # Errors
    /// As [`DatasetSettings::parse`].
    pub fn check(name: &str, file: DatasetFile) -> Result<DatasetSettings, SettingsError> {
        let named = || name.to_owned();
        let format = file.format.as_deref().map(str::parse::<Format>).transpose();
        let format = format.map_err(|why| SettingsError::Format { file: named(), why })?;
        let has_columns = file.key.is_some() || !file.values.is_empty() || file.header.is_some();
        if format == Some(Format::SequenceFile) && has_columns {
            return Err(SettingsError::NoColumns { file: named() });
        }
        let columns = Columns { key: file.key, values: file.values, header: file.header.unwrap_or(true) };
        let content_type = file.content_type.unwrap_or(Served::default().content_type);
        let is_visible = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
        if content_type.is_empty() || !content_type.bytes().all(is_visible) {
            return Err(SettingsError::ContentType { file: named(), value: short(&content_type) });
        }
        let dealing = file.dealing.as_deref().map(str::parse::<Dealing>).transpose();
        let spread = SpreadSettings {
            replication: file.replication,
            min_replication: file.min_replication,
            max_replication: file.max_replication,
            dealing: dealing.map_err(|why| SettingsError::Dealing { file: named(), why })?,
        };
        // Beside a node that would allow the most.
        let wanted = spread.min_replication.unwrap_or(1).max(1);
        let most = Replication { wanted, min: 1, max: None };
        spread.over(most).map_err(|why| SettingsError::Replication { file: named(), why })?;
        Ok(DatasetSettings {
            read: Read { format, columns, ..Read::default() },
            is_sampled: file.sampled.unwrap_or(true),
            layout: layout(name, file.layout.as_deref())?,
            compression: compression(name, file.compression.as_deref(), file.level)?,
            content_type,
            needs_success: file.success.unwrap_or(false),
            is_served: file.served.unwrap_or(true),
            spread,
            guard: guard(name, &file.min_keys, file.max_shrink_percent)?,
        })
    }
}

fn guard(file: &str, min_keys: &Option<u64>, percent: Option<u32>) -> Result<Guard, SettingsError> {
    let max_shrink_percent = percent.unwrap_or(Guard::default().max_shrink_percent);
    match max_shrink_percent {
        0..=100 => Ok(Guard { min_keys: *min_keys, max_shrink_percent }),
        percent => Err(SettingsError::Percent { file: file.to_owned(), percent }),
    }
}

fn layout(file: &str, word: Option<&str>) -> Result<Layout, SettingsError> {
    match word {
        None | Some("hashed") => Ok(Layout::Hashed),
        Some("ordered") => Ok(Layout::Ordered),
        Some(other) => Err(unknown(file, "layout", other, "hashed, ordered")),
    }
}

fn compression(file: &str, word: Option<&str>, level: Option<i32>) -> Result<Compression, SettingsError> {
    let compression = match word {
        None | Some("none") => Compression::None,
        Some("lz4") => Compression::Lz4,
        Some("zstd") => Compression::Zstd { level: level.unwrap_or(LEVEL) },
        Some(other) => return Err(unknown(file, "compression", other, "none, lz4, zstd")),
    };
    match (level, compression) {
        (Some(1..=19) | None, Compression::Zstd { .. }) | (None, _) => Ok(compression),
        (Some(level), _) => Err(SettingsError::Level { file: file.to_owned(), level }),
    }
}

fn unknown(file: &str, key: &'static str, value: &str, known: &'static str) -> SettingsError {
    SettingsError::Word { file: file.to_owned(), key, value: short(value), known }
}

fn short(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<DatasetSettings, String> {
        DatasetSettings::parse("colours/_dataset.toml", text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_file_says_what_no_file_says() {
        assert_eq!(parse("").unwrap(), DatasetSettings::default());
    }

    #[test]
    fn every_key_counts() {
        let said = parse(
            "format = 'csv'\nkey = 'k'\nvalues = ['a', 'b']\nheader = false\nsampled = false\nlayout = 'ordered'\n\
             compression = 'zstd'\nlevel = 7\ncontent_type = 'text/plain; charset=utf-8'\nsuccess = true\n\
             replication = 3\nmin_replication = 2\nmax_replication = 4\ndealing = 'ring_index'\nserved = false\nmin_keys = 5\nmax_shrink_percent = 10",
        );
        let columns = Columns { key: Some("k".into()), values: vec!["a".into(), "b".into()], header: false };
        let expected = DatasetSettings {
            read: Read { format: Some(Format::Csv), columns, ..Read::default() },
            is_sampled: false,
            layout: Layout::Ordered,
            compression: Compression::Zstd { level: 7 },
            content_type: "text/plain; charset=utf-8".into(),
            needs_success: true,
            is_served: false,
            spread: SpreadSettings {
                replication: Some(3),
                min_replication: Some(2),
                max_replication: Some(4),
                dealing: Some(Dealing::RingIndex),
            },
            guard: Guard { min_keys: Some(5), max_shrink_percent: 10 },
        };
        assert_eq!(said.unwrap(), expected);
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_way_out() {
        for (text, told) in [
            ("formt = 'csv'", "did you mean \"format\""),
            ("format = 'xml'", "sequencefile, csv, tsv, jsonl, parquet"),
            ("format = 'sequencefile'\nkey = 'k'", "leave out key"),
            ("layout = 'sorted'", "hashed, ordered"),
            ("compression = 'gzip'", "none, lz4, zstd"),
            ("compression = 'zstd'\nlevel = 20", "1 to 19"),
            ("level = 3", "goes with compression"),
            ("content_type = \"text\\nplain\"", "visible ASCII"),
            ("key = 7", "line 1"),
            ("dealing = 'ring-index'", "ring_index"),
            ("max_shrink_percent = 101", "0 to 100"),
            ("replication = 0", "replication"),
            ("replication = 2\nmin_replication = 3", "3"),
        ] {
            let said = parse(text).unwrap_err();
            assert!(said.contains(told) && said.contains("colours/_dataset.toml"), "{text}: {said}");
        }
        let long = vec![b' '; SETTINGS_BYTES + 1];
        for bytes in [&[0xff][..], &long] {
            assert!(matches!(DatasetSettings::parse("f", bytes), Err(SettingsError::NoText { .. })));
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let file = DatasetFile { key: Some("k".into()), level: Some(4), ..DatasetFile::default() };
        let text = toml::to_string(&file).unwrap();
        assert_eq!(text, "key = \"k\"\nlevel = 4\n");
        assert_eq!(config::parse::<DatasetFile>("f", &text).unwrap(), file);
    }
}
