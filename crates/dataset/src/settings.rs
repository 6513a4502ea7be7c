//! What a dataset is: the settings that lie beside its versions in the source, checked.

use crate::build::{self, Tolerance, UnknownTolerance};
use crate::catalogue::Options as Served;
use crate::format::{Columns, Format, Options as Read, Quoting, UnknownFormat};
use crate::limits::SETTINGS_BYTES;
use partage_engine::readonly::{Compression, Layout};
use partage_service::dataset::columns::KEY_COLUMNS;
use partage_service::dataset::node::Guard;
use partage_service::dataset::{Dealing, Replication, ReplicationError, UnknownDealing};
use partage_wire::config::{self, ConfigError, DatasetFile};

/// The file of the settings, in the dataset's folder. Its name begins with `_`, so it is no version.
pub const FILE: &str = "_dataset.toml";

/// The level of zstd that settings without `level` mean.
const LEVEL: i32 = 3;

/// All that the settings of a dataset say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetSettings {
    /// How its files are read.
    pub read: Read,
    /// The column of the key that says alone which partition a row is in, from 0, and of how many; none: all columns do.
    pub partition_by: Option<(u8, u8)>,
    /// How many rows may be bad.
    pub tolerance: Tolerance,
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

/// How a dataset is spread over the nodes; what it leaves out is as the options of the node say.
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
            partition_by: None,
            tolerance: Tolerance::default(),
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
    /// The file is no UTF-8 text, or too long.
    #[error(
        "{file}: it is not UTF-8 text of at most {SETTINGS_BYTES} bytes: write TOML, see the book's page on sources"
    )]
    NoText {
        /// The name of the settings file in error messages.
        file: String,
    },
    /// A format that there is not.
    #[error("{file}: {why}")]
    Format {
        /// The name of the settings file in error messages.
        file: String,
        /// The name that was given, and the formats that there are.
        why: UnknownFormat,
    },
    /// A word that is none of those that may stand there.
    #[error("{file}: {key} = {value:?} is none of {known}")]
    Word {
        /// The name of the settings file in error messages.
        file: String,
        /// The setting that has the value: `layout` or `compression`.
        key: &'static str,
        /// As given, cut to 64 characters.
        value: String,
        /// What may stand there.
        known: &'static str,
    },
    /// A dealing that there is not.
    #[error("{file}: {why}")]
    Dealing {
        /// The name of the settings file in error messages.
        file: String,
        /// The name that was given, and the dealings that there are.
        why: UnknownDealing,
    },
    /// Numbers of replicas that do not go together, whatever the options of a node say.
    #[error("{file}: {why}")]
    Replication {
        /// The name of the settings file in error messages.
        file: String,
        /// Which numbers of replicas contradict each other.
        why: ReplicationError,
    },
    /// A level without zstd, or out of range.
    #[error("{file}: level = {level} goes with compression = \"zstd\" and is 1 to 19")]
    Level {
        /// The name of the settings file in error messages.
        file: String,
        /// The compression level, as given.
        level: i32,
    },
    /// A version cannot lose more than all of its keys.
    #[error(
        "{file}: max_shrink_percent = {percent} is not 0 to 100; with 100 a version may lose all of its keys"
    )]
    Percent {
        /// The name of the settings file in error messages.
        file: String,
        /// The value of `max_shrink_percent`, as given: more than 100.
        percent: u32,
    },
    /// Columns that a SequenceFile does not have.
    #[error(
        "{file}: a SequenceFile has no columns: leave out key, partition_by, values, header, delimiter and quote"
    )]
    NoColumns {
        /// The name of the settings file in error messages.
        file: String,
    },
    /// No key that rows could have.
    #[error("{file}: key = {key:?}: {how}")]
    Key {
        /// The name of the settings file in error messages.
        file: String,
        /// As given, cut to some columns.
        key: Vec<String>,
        /// What is wrong with the columns of the key, and the way out.
        how: String,
    },
    /// It cannot stand between fields, or around them.
    #[error("{file}: {key} = {value:?}: {how}")]
    Mark {
        /// The name of the settings file in error messages.
        file: String,
        /// The setting that has the value: `delimiter` or `quote`.
        key: &'static str,
        /// As given, cut to 64 characters.
        value: String,
        /// Why the text cannot be a delimiter or a quote.
        how: &'static str,
    },
    /// Neither a number nor a share.
    #[error("{file}: {why}")]
    BadRows {
        /// The name of the settings file in error messages.
        file: String,
        /// What was given instead of a number or a share.
        why: UnknownTolerance,
    },
    /// The content type would break the header of an answer.
    #[error("{file}: content_type = {value:?} is none: use visible ASCII, such as text/plain")]
    ContentType {
        /// The name of the settings file in error messages.
        file: String,
        /// The content type, as given, cut to 64 characters.
        value: String,
    },
}

impl From<&DatasetSettings> for build::Options {
    fn from(settings: &DatasetSettings) -> build::Options {
        let DatasetSettings { read, partition_by, tolerance, is_sampled, layout, compression, .. } = settings;
        build::Options {
            format: read.clone(),
            partition_by: *partition_by,
            tolerance: *tolerance,
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
        let has_marks = file.header.is_some() || file.delimiter.is_some() || file.quote.is_some();
        let has_columns =
            file.key.is_some() || file.partition_by.is_some() || !file.values.is_empty() || has_marks;
        if format == Some(Format::SequenceFile) && has_columns {
            return Err(SettingsError::NoColumns { file: named() });
        }
        let (key, partition_by) = key(name, file.key.map(|key| key.0), file.partition_by)?;
        let (delimiter, quoting) = marks(name, file.delimiter.as_deref(), file.quote.as_deref())?;
        let header = file.header.unwrap_or(true);
        let columns = Columns { key, values: file.values, header, delimiter, quoting };
        let tolerance = file.max_bad_rows.map(|rows| rows.0.parse()).transpose();
        let tolerance = tolerance.map_err(|why| SettingsError::BadRows { file: named(), why })?;
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
            partition_by,
            tolerance: tolerance.unwrap_or_default(),
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

/// The column of the key that decides about the partition, from 0, and of how many.
type PartitionColumn = Option<(u8, u8)>;

/// The columns of the key, and which of them decides about the partition, if not all do.
fn key(
    file: &str,
    key: Option<Vec<String>>,
    partition_by: Option<String>,
) -> Result<(Vec<String>, PartitionColumn), SettingsError> {
    let is_named = key.is_some();
    let mut key = key.unwrap_or_default();
    let wrong = |key: &[String], how: String| SettingsError::Key {
        file: file.to_owned(),
        key: key.iter().take(KEY_COLUMNS).map(|name| short(name)).collect(),
        how,
    };
    if key.is_empty() && is_named {
        return Err(wrong(&key, "name a column".to_owned()));
    }
    if key.is_empty() && partition_by.is_some() {
        return Err(wrong(&key, "partition_by goes with a key: name its columns, too".to_owned()));
    }
    if let Some(column) = &partition_by
        && !key.contains(column)
    {
        key.insert(0, column.clone());
    }
    if key.len() > KEY_COLUMNS {
        return Err(wrong(&key, format!("{} columns, and a key has {KEY_COLUMNS} at most", key.len())));
    }
    if let Some((_, twice)) = key.iter().enumerate().find(|(at, name)| key[..*at].contains(name)) {
        return Err(wrong(&key, format!("{:?} stands there twice", short(twice))));
    }
    let column = partition_by.and_then(|column| key.iter().position(|name| *name == column));
    // Of one column, all of the key decides.
    let column = column.filter(|_| key.len() > 1);
    let of = key.len() as u8;
    Ok((key, column.map(|column| (column as u8, of))))
}

fn marks(
    file: &str,
    delimiter: Option<&str>,
    quote: Option<&str>,
) -> Result<(Option<u8>, Quoting), SettingsError> {
    let wrong =
        |key, value: &str, how| SettingsError::Mark { file: file.to_owned(), key, value: short(value), how };
    let mark = |key, text: &str| match text.as_bytes() {
        [b'\n' | b'\r' | 0 | 1] => {
            Err(wrong(key, text, "lines end so, or it is kept for other things: take another one"))
        }
        [one] if one.is_ascii() => Ok(*one),
        _ => Err(wrong(key, text, "it must be one ASCII character, such as ; or \\t")),
    };
    let delimiter = delimiter.map(|text| mark("delimiter", text)).transpose()?;
    let quoting = match quote {
        None => Quoting::OfFormat,
        Some("") => Quoting::None,
        Some(text) => Quoting::By(mark("quote", text)?),
    };
    if let (Some(delimiter), Quoting::By(quote)) = (delimiter, quoting)
        && delimiter == quote
    {
        return Err(wrong("quote", &char::from(quote).to_string(), "it is the delimiter, too"));
    }
    Ok((delimiter, quoting))
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
            "format = 'csv'\nkey = ['k', 'l']\npartition_by = 'l'\ndelimiter = ';'\nquote = \"'\"\nmax_bad_rows = '1%'\nvalues = ['a', 'b']\nheader = false\nsampled = false\nlayout = 'ordered'\n\
             compression = 'zstd'\nlevel = 7\ncontent_type = 'text/plain; charset=utf-8'\nsuccess = true\n\
             replication = 3\nmin_replication = 2\nmax_replication = 4\ndealing = 'ring_index'\nserved = false\nmin_keys = 5\nmax_shrink_percent = 10",
        );
        let columns = Columns {
            key: vec!["k".into(), "l".into()],
            values: vec!["a".into(), "b".into()],
            header: false,
            delimiter: Some(b';'),
            quoting: Quoting::By(b'\''),
        };
        let expected = DatasetSettings {
            read: Read { format: Some(Format::Csv), columns, ..Read::default() },
            partition_by: Some((1, 2)),
            tolerance: Tolerance::PerMillion(10_000),
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
    fn a_column_to_partition_by_is_a_part_of_the_key() {
        for (text, key, partition_by) in [
            ("key = 'id'", vec!["id"], None),
            ("key = ['id', 'day']", vec!["id", "day"], None),
            ("key = 'id'\npartition_by = 'id'", vec!["id"], None),
            ("key = 'id'\npartition_by = 'tenant'", vec!["tenant", "id"], Some((0, 2))),
            ("key = ['day', 'id']\npartition_by = 'id'", vec!["day", "id"], Some((1, 2))),
        ] {
            let said = parse(text).unwrap();
            assert_eq!(
                (said.read.columns.key, said.partition_by),
                (key.into_iter().map(str::to_owned).collect(), partition_by),
                "{text}"
            );
        }
        let said = parse("max_bad_rows = 10\nquote = ''").unwrap();
        assert_eq!((said.tolerance, said.read.columns.quoting), (Tolerance::Rows(10), Quoting::None));
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
            ("key = []", "name a column"),
            ("key = ['a', 'a']", "twice"),
            ("partition_by = 'a'", "goes with a key"),
            ("format = 'sequencefile'\ndelimiter = ';'", "leave out key"),
            ("delimiter = ';;'", "one ASCII character"),
            ("delimiter = '€'", "one ASCII character"),
            ("quote = \"\\n\"", "take another"),
            ("delimiter = ';'\nquote = ';'", "delimiter, too"),
            ("max_bad_rows = 'some'", "0.5%"),
            ("max_bad_rows = -1", "number of rows"),
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
        let file = DatasetFile {
            key: Some(config::KeyColumns(vec!["k".into()])),
            level: Some(4),
            ..DatasetFile::default()
        };
        let text = toml::to_string(&file).unwrap();
        assert_eq!(text, "key = \"k\"\nlevel = 4\n");
        assert_eq!(config::parse::<DatasetFile>("f", &text).unwrap(), file);
    }
}
