//! `partage shuffle sort`: files in, sorted parts of equal size out.
//!
//! ```text
//!  files ─► pieces ─► an attempt of each, some at once ─► seal ─► partitions, some at once ─► parts ─► folder gets its name
//!           layout    write                                      read                         folder
//! ```
//!
//! A piece is an input partition: an attempt that fails reads its piece again. So the order of equal keys is that of the files
//! and of their records.

mod binary;
mod by;
mod delimited;
mod folder;
mod json_lines;
mod layout;
mod parquet;
mod read;
mod write;

use super::bounds::Cut;
use super::nodes::{ShuffleNodes, failure};
use crate::client::DryRun;
use crate::output::{Failure, Output, say};
use crate::redrawn::drawn;
use crate::role::StopSignals;
use by::By;
use clap::Args;
use folder::PartFolder;
use indicatif::ProgressBar;
use layout::{Format, Layout, Piece, Wanted};
use partage_shuffle_client::{Client, Durability, Shuffle, StartOptions};
use serde_json::json;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

/// Most partitions: as many files a folder has without trouble.
const MOST_PARTITIONS: u64 = 65_536;

/// Bytes of an input partition: of a small input it has some sixteen, so that several are written at once; an attempt that fails
/// reads no more than the larger number again.
const PIECES: u64 = 16;
const LEAST_PIECE: u64 = 1 << 20;
const MOST_PIECE: u64 = 64 << 20;

/// Between two times that the nodes are told that the shuffle is in use.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// How long the deletion of the shuffle may take at the end.
const DELETE: Duration = Duration::from_secs(15);

const FILES: &str = "Files";

/// `partage shuffle sort`
#[derive(Debug, Args)]
pub struct SortArgs {
    /// Files to sort, all of one format and with the same columns
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Column to sort by, as COLUMN[:number][:desc][:nulls-first]; of several, each given by --by, the first one counts first.
    /// Fields of CSV are texts, or numbers with :number. Nulls are last, unless :nulls-first is given
    #[arg(long, value_name = "COLUMN")]
    by: Vec<By>,
    /// Folder for the parts, one file for each partition: part-00000 and so on; it must not be there, or be empty
    #[arg(long, short = 'o', value_name = "FOLDER")]
    out: PathBuf,
    /// Number of partitions
    #[arg(long, value_name = "COUNT")]
    partitions: u64,
    /// How partitions are cut
    #[arg(long, value_enum, default_value_t = Cut::Records)]
    cut: Cut,
    /// Format of the files [default: by their names]
    #[arg(long, value_enum, help_heading = FILES)]
    format: Option<Format>,
    /// Length of each record of binary files, in bytes
    #[arg(long, value_name = "BYTES", help_heading = FILES, value_parser = clap::value_parser!(u64).range(1..))]
    record: Option<u64>,
    /// Length of the key at the front of each record of binary files, in bytes
    #[arg(long, value_name = "BYTES", help_heading = FILES, value_parser = clap::value_parser!(u64).range(1..))]
    key: Option<u64>,
    /// Maximum number of input partitions that are written at once, and of parts that are read at once
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    parallel: u16,
    /// Where records are while they are sorted: on the disks of several nodes (disk), or in the memory of several machines
    /// (memory), and the sort fails if these lose power at once
    #[arg(long, default_value_t = Durability::Disk, value_name = "disk|memory")]
    durability: Durability,
    #[command(flatten)]
    dry: DryRun,
    #[command(flatten)]
    nodes: ShuffleNodes,
}

/// What was sorted.
#[derive(Debug, Clone, Copy)]
struct Sum {
    records: u64,
    bytes: u64,
}

/// One sort, as far as it is the same for all that is done of it.
#[derive(Debug, Clone)]
struct Sort {
    client: Client,
    shuffle: Shuffle,
    layout: Arc<Layout>,
    at_once: usize,
    cut: Cut,
    is_json: bool,
}

impl SortArgs {
    /// Runs it.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        if self.partitions == 0 || self.partitions > MOST_PARTITIONS {
            return Err(Failure::usage(format!("--partitions {} cannot be", self.partitions))
                .help(format!("give --partitions 1 to --partitions {MOST_PARTITIONS}")));
        }
        folder::check(&self.out)?;
        let (wanted, files) = (self.wanted()?, self.files.clone());
        let planned = spawn_blocking(move || plan(&files, &wanted)).await;
        let (layout, pieces, bytes) = planned.map_err(Failure::failed)??;
        let client = self.nodes.connect().await?;
        if self.dry.dry_run {
            return self.foresee(&pieces, bytes, output);
        }
        let mut signals = StopSignals::listen()?;
        let parts = PartFolder::create(&self.out, self.extension().as_deref())?;
        let (partitions, durability) = (self.partitions, self.durability);
        let options = StartOptions { partitions, bytes, durability, ..StartOptions::default() };
        let shuffle = client.start(&options).await.map_err(failure)?;
        let sort = Sort {
            client,
            shuffle,
            layout: Arc::new(layout),
            at_once: usize::from(self.parallel),
            cut: self.cut,
            is_json: output.is_json(),
        };
        let inputs = pieces.len();
        let sorted = signals.unless_asked(sort.run(pieces, bytes, self.partitions, parts)).await;
        // What is left of it would expire: that the space comes back later is no failure.
        if let Some(why) = sort.not_deleted().await {
            say(&format!("warning: shuffle {} is not deleted, and will expire: {why}", shuffle.id));
        }
        let Some(sorted) = sorted else {
            return Err(Failure::interrupted("interrupted: no part was written"));
        };
        self.report(sorted?, inputs, shuffle, output)
    }

    /// The format of the files, and what of them is sorted.
    fn wanted(&self) -> Result<Wanted, Failure> {
        let by_name = || {
            let mut formats = self.files.iter().map(|file| (file, Format::of_name(file)));
            let (first, format) = formats.next()?;
            match formats.find(|(_, other)| *other != format) {
                Some((other, _)) => Some(Err(Failure::usage(format!(
                    "the names of {} and {} do not say the same format",
                    first.display(),
                    other.display()
                )))),
                None => format.map(Ok),
            }
        };
        let unknown = || {
            let name = self.files.first().map(|file| file.display().to_string()).unwrap_or_default();
            Failure::usage(format!("the name {name} does not say its format"))
        };
        let is_binary = self.record.is_some() && self.by.is_empty();
        let format = match self.format {
            Some(format) => format,
            None if is_binary => Format::Binary,
            None => by_name()
                .unwrap_or_else(|| Err(unknown()))
                .map_err(|failure| failure.help("give --format binary, csv, jsonl or parquet"))?,
        };
        Ok(Wanted { format, record: self.record, key: self.key, by: self.by.clone() })
    }

    /// The end of the names of the parts: that of the first file.
    fn extension(&self) -> Option<String> {
        let first = self.files.first()?;
        Some(first.extension()?.to_str()?.to_owned())
    }

    fn foresee(&self, pieces: &[Piece], bytes: u64, output: &mut Output) -> Result<(), Failure> {
        let (inputs, out, partitions) = (pieces.len(), self.out.display(), self.partitions);
        if output.is_json() {
            return output.json(&json!({
                "dry_run": true, "inputs": inputs, "file_bytes": bytes, "partitions": partitions,
                "out": out.to_string(),
            }));
        }
        output.text(&format!(
            "would sort {bytes} bytes of {} files, in {inputs} input partitions, into {partitions} parts in {out}",
            self.files.len()
        ));
        Ok(())
    }

    fn report(&self, sum: Sum, inputs: usize, shuffle: Shuffle, output: &mut Output) -> Result<(), Failure> {
        let (Sum { records, bytes }, out, partitions) = (sum, self.out.display(), self.partitions);
        if output.is_json() {
            return output.json(&json!({
                "dry_run": false, "shuffle": shuffle.id.to_string(), "inputs": inputs, "records": records,
                "bytes": bytes, "partitions": partitions, "out": out.to_string(),
            }));
        }
        output.text(&format!("sorted {records} records into {partitions} parts in {out}"));
        Ok(())
    }
}

/// What the files have: how, in which input partitions, and how many bytes.
fn plan(files: &[PathBuf], wanted: &Wanted) -> Result<(Layout, Vec<Piece>, u64), Failure> {
    let lengths = files.iter().map(|file| layout::length(file)).collect::<Result<Vec<_>, _>>()?;
    let bytes: u64 = lengths.iter().sum();
    let piece = (bytes / PIECES).clamp(LEAST_PIECE, MOST_PIECE);
    let (layout, pieces) = Layout::of(files, wanted, piece)?;
    if u32::try_from(pieces.len()).is_err() {
        return Err(Failure::usage(format!("the files have {} input partitions", pieces.len()))
            .help("sort fewer files at once"));
    }
    Ok((layout, pieces, bytes))
}

impl Sort {
    /// From the first record that is written to the last part.
    async fn run(
        &self,
        pieces: Vec<Piece>,
        bytes: u64,
        partitions: u64,
        parts: PartFolder,
    ) -> Result<Sum, Failure> {
        let work = async {
            let sum = self.write(&pieces, bytes).await?;
            self.read(sum, partitions, &parts).await?;
            Ok::<Sum, Failure>(sum)
        };
        let sum = tokio::select! {
            sorted = work => sorted?,
            never = self.keep_alive() => match never {},
        };
        spawn_blocking(move || parts.finish()).await.map_err(Failure::failed)??;
        Ok(sum)
    }

    /// Deletes the shuffle, and says why that is not done. Where no node answers any more, it does not wait for long.
    async fn not_deleted(&self) -> Option<String> {
        match timeout(DELETE, self.client.delete(self.shuffle.id)).await {
            Ok(deleted) => deleted.err().map(|error| error.to_string()),
            Err(_) => Some(format!("no node has answered within {} s", DELETE.as_secs())),
        }
    }

    /// Says again and again that the shuffle is in use.
    async fn keep_alive(&self) -> Infallible {
        loop {
            sleep(KEEP_ALIVE).await;
            // A node that says that there is no such shuffle says so to those who write and read, too.
            let _ = self.client.keep_alive(self.shuffle.id).await;
        }
    }

    /// A bar of bytes or of records; nothing where no person looks on, or with `--json`.
    fn bar(&self, what: &'static str, length: u64, template: &str) -> ProgressBar {
        drawn(ProgressBar::new(length).with_message(what), template, self.is_json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        sort: SortArgs,
    }

    fn sort(arguments: &[&str]) -> SortArgs {
        let all = [&["sort", "-o", "out", "--partitions", "7"], arguments].concat();
        Line::try_parse_from(all).unwrap().sort
    }

    #[test]
    fn the_format_is_that_of_the_names_unless_it_is_said() {
        let format = |arguments: &[&str]| sort(arguments).wanted().map(|wanted| wanted.format);
        assert_eq!(format(&["a.csv", "b.csv"]), Ok(Format::Csv));
        assert_eq!(format(&["a.ndjson"]), Ok(Format::Jsonl));
        assert_eq!(format(&["a", "--record", "100", "--key", "10"]), Ok(Format::Binary));
        assert_eq!(format(&["a", "--format", "parquet"]), Ok(Format::Parquet));
        let what = |arguments: &[&str]| format(arguments).unwrap_err().to_string();
        assert!(what(&["a.csv", "b.jsonl"]).contains("a.csv and b.jsonl do not say the same format"));
        assert!(what(&["a"]).contains("the name a does not say its format"));
        assert!(what(&["a"]).contains("--format binary"));
    }

    #[test]
    fn what_cannot_be_sorted_is_refused_with_a_way_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("a.bin"), [0; 250]).unwrap();
        let what = |arguments: &[&str]| {
            let args = sort(arguments);
            plan(&args.files, &args.wanted().unwrap()).unwrap_err().to_string()
        };
        let [file, none] = [path("a.bin"), path("b.bin")].map(|path| path.display().to_string());
        let odd = what(&[&file, "--record", "100", "--key", "10"]);
        assert!(odd.contains("250 bytes, which are 2 records of 100 bytes and 50 bytes more"), "{odd}");
        assert!(what(&[&file]).contains("--record 100 --key 10"));
        assert!(what(&[&file, "--record", "100", "--key", "101"]).contains("--key 1 to --key 100"));
        assert!(what(&[&none, "--record", "100", "--key", "10"]).contains("cannot read"));
        assert!(what(&[&file, "--format", "csv"]).contains("give --by COLUMN"));
        assert!(what(&[&file, "--format", "parquet", "--by", "a"]).contains("as Parquet"));
        let folder = folder.path().display().to_string();
        assert!(what(&[&folder, "--format", "binary", "--record", "1", "--key", "1"]).contains("is no file"));
    }
}
