//! The settings of a dataset as flags.

use crate::output::Failure;
use clap::Args;
use partage_dataset::settings::{DatasetSettings, FILE};
use partage_dataset::source::{Settings, Source};
use partage_service::dataset::DatasetName;
use partage_wire::config::{self, BadRows, DatasetFile, KeyColumns};
use std::path::Path;

/// What a dataset's files are and how they are served.
#[derive(Debug, Clone, Default, Args)]
pub struct SettingsArgs {
    /// Format of the files: sequencefile, csv, tsv, jsonl or parquet [default: detected from each file's content and
    /// name]
    #[arg(long)]
    format: Option<String>,
    /// Key column; repeatable for a key of several columns, in this order; in a file without a header the columns are
    /// 1, 2 and so on
    #[arg(long = "key", value_name = "COLUMN")]
    keys: Vec<String>,
    /// Column that alone decides the partition of a row; if it is not a key column, it becomes the first key column
    /// [default: the whole key decides]
    #[arg(long, value_name = "COLUMN")]
    partition_by: Option<String>,
    /// Value column; repeatable: several columns become a JSON object [default: the whole row as JSON]
    #[arg(long = "value", value_name = "COLUMN")]
    values: Vec<String>,
    /// Read the first line of CSV and TSV files as a record, not as column names
    #[arg(long)]
    no_header: bool,
    /// Delimiter between two fields of CSV and TSV, one ASCII character [default: a comma in CSV, a tab in TSV]
    #[arg(long, value_name = "CHAR")]
    delimiter: Option<String>,
    /// Quote character of CSV and TSV, around a field that contains a delimiter, one ASCII character, or "" for none
    /// [default: " in CSV, none in TSV]
    #[arg(long, value_name = "CHAR")]
    quote: Option<String>,
    /// Maximum of bad rows, which are left out and listed: a number for all files together, or a share of each file,
    /// such as 0.5% [default: 0]
    #[arg(long, value_name = "ROWS")]
    max_bad_rows: Option<String>,
    /// Layout of the store files: hashed, or ordered for scans [default: hashed]
    #[arg(long)]
    layout: Option<String>,
    /// Compression of the store files: none, lz4 or zstd [default: none]
    #[arg(long)]
    compression: Option<String>,
    /// Compression level of zstd, 1 to 19 [default: 3]
    #[arg(long)]
    level: Option<i32>,
}

impl SettingsArgs {
    /// The flags, and what the file says where a flag is not given.
    pub fn over(self, file: DatasetFile) -> DatasetFile {
        DatasetFile {
            format: self.format.or(file.format),
            key: if self.keys.is_empty() { file.key } else { Some(KeyColumns(self.keys)) },
            partition_by: self.partition_by.or(file.partition_by),
            values: if self.values.is_empty() { file.values } else { self.values },
            header: if self.no_header { Some(false) } else { file.header },
            delimiter: self.delimiter.or(file.delimiter),
            quote: self.quote.or(file.quote),
            max_bad_rows: self.max_bad_rows.map(BadRows).or(file.max_bad_rows),
            layout: self.layout.or(file.layout),
            compression: self.compression.or(file.compression),
            level: self.level.or(file.level),
            ..file
        }
    }
}

/// The settings, or what is wrong with them.
pub fn checked(file: DatasetFile) -> Result<DatasetSettings, Failure> {
    DatasetSettings::check("the settings", file).map_err(Failure::usage)
}

/// What the source has of a dataset's settings.
pub async fn kept(source: &Source, dataset: &DatasetName) -> Result<Option<DatasetFile>, Failure> {
    let limit = partage_dataset::limits::SETTINGS_BYTES as u64;
    let bytes = source.read(dataset, FILE, limit).await.map_err(Failure::failed)?;
    let Some(bytes) = bytes else { return Ok(None) };
    let name = format!("{}/{dataset}/{FILE}", source.url());
    let text = String::from_utf8_lossy(&bytes);
    let mend = |error| Failure::failed(error).help("mend the file, or give all of it anew with --replace");
    config::parse(&name, &text).map(Some).map_err(mend)
}

/// The source at `url`, with the credentials that the environment has.
pub fn open(url: &str) -> Result<Source, Failure> {
    if url.ends_with("://") {
        return Err(Failure::usage(format!(
            "{url} names no bucket: give all of it, such as s3://bucket/prefix"
        )));
    }
    if !url.contains("://") && !Path::new(url).exists() {
        // A person may have meant a URL.
        let or_url = if url.contains(":/") || url.contains("//") {
            "; a URL has :// after its scheme, such as s3://bucket/prefix"
        } else {
            ""
        };
        return Err(Failure::usage(format!("there is no folder {url}: make it, or name another{or_url}")));
    }
    Source::open(url, &environment()).map_err(Failure::usage)
}

/// The same for a node that has something in its local store, and serves that while its source is away.
pub fn open_away(url: &str) -> Result<Source, Failure> {
    Source::open_away(url, &environment()).map_err(Failure::usage)
}

/// Refuses a dataset of which the source has no folder.
pub async fn there(source: &Source, dataset: &DatasetName) -> Result<(), Failure> {
    let known = source.datasets().await.map_err(Failure::failed)?.names;
    if known.contains(dataset) {
        return Ok(());
    }
    let names: Vec<_> = known.iter().map(DatasetName::as_str).collect();
    let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    Err(Failure::refused(format!("{} has no dataset {dataset}: it has {has}", source.url())))
}

/// What the environment says to libraries of object stores.
#[expect(clippy::disallowed_methods, reason = "the command line is where the environment is read")]
pub fn environment() -> Settings {
    let known = ["AWS_", "GOOGLE_", "AZURE_", "HADOOP_", "HDFS_"];
    let is_known = |name: &str| known.iter().any(|prefix| name.to_ascii_uppercase().starts_with(prefix));
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| is_known(name))
        .collect()
}

/// Makes the folder for objects that a URL names, if it names one.
pub fn make_folder(url: &str) -> Result<(), Failure> {
    let Some(folder) = Source::folder_of(url).map_err(Failure::usage)? else { return Ok(()) };
    if !url.contains("://") && (url.contains(":/") || url.contains("//")) {
        return Err(Failure::usage(format!("{url} looks like a URL, and is none"))
            .help("a URL has :// after its scheme, such as s3://bucket/prefix"));
    }
    let failed = |error| Failure::failed(format!("cannot make the folder {}: {error}", folder.display()));
    std::fs::create_dir_all(&folder).map_err(failed)
}

/// The name of a dataset, checked.
pub fn named(name: &str) -> Result<DatasetName, Failure> {
    DatasetName::new(name).map_err(Failure::usage)
}
