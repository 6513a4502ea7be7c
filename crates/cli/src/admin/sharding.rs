//! How keys map to shards and what the first shards are, as flags: which of them go together.
//!
//! | sharding     | its flags                                             |
//! |--------------|-------------------------------------------------------|
//! | `key-range`  | `--split`, or `--sample` and with it `--shards`       |
//! | `hash-range` | `--hash`, `--shards`                                  |
//! | `fixed`      | `--hash`, `--shards`                                  |
//! | `named`      | `--partitions`                                        |
//!
//! A flag of another sharding is refused: done without it would be done otherwise than was said.

use super::hex::Hex;
use crate::keys::{self, Columns, Keys, Wanted};
use crate::output::{Failure, say};
use clap::Args;
use partage_core::base::suggest;
use partage_core::keyspace::hash::{HashFunction, UnknownHash};
use partage_core::keyspace::sharding::presplit;
use partage_wire::json::{KeyText, PartitionKey, Presplit, Sharding};
use std::path::PathBuf;

/// Shards to begin with where no flag says how many.
const SHARDS: u32 = 16;

const KEY_RANGE: &str = "key-range";
const HASH_RANGE: &str = "hash-range";
const FIXED: &str = "fixed";
const NAMED: &str = "named";
const KNOWN: [&str; 4] = [KEY_RANGE, HASH_RANGE, FIXED, NAMED];

/// The flags that say how a keyspace is sharded, and which shards it begins with.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sharding")]
pub struct ShardingArgs {
    /// Sharding of the keyspace: key-range, hash-range, fixed or named
    #[arg(long, default_value = HASH_RANGE)]
    sharding: String,
    #[arg(long, help = hashes())]
    hash: Option<String>,
    /// hash-range, fixed, or key-range with --sample: number of shards at the start [default: 16]
    #[arg(long)]
    shards: Option<u32>,
    /// key-range: keys at which to cut the first shards, separated by commas
    #[arg(long, value_name = "KEYS", value_delimiter = ',', conflicts_with = "sample")]
    split: Vec<String>,
    /// key-range: file with sample keys, whose load decides where to cut the first shards; - for stdin; .gz is unpacked
    #[arg(long, value_name = "FILE")]
    sample: Option<PathBuf>,
    #[command(flatten)]
    columns: Columns,
    /// named: names of the first partitions, separated by commas; `partage shard register` adds more later
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    partitions: Vec<String>,
    /// Part of a key that decides its shard: whole, prefix:BYTES, up-to:CHARACTER, or hash-tag (the text in braces)
    /// [default: whole]
    #[arg(long, value_name = "PART", value_parser = partition_key)]
    partition_key: Option<PartitionKey>,
    #[command(flatten)]
    hex: Hex,
}

/// What [`ShardingArgs`] say, checked, as the coordinator is asked for it.
pub struct ShardingSpec {
    pub sharding: Sharding,
    pub partition_key: Option<PartitionKey>,
    pub presplit: Presplit,
}

fn hashes() -> String {
    let names = HashFunction::ALL.map(HashFunction::name).join(", ");
    format!("hash-range and fixed: the hash function, one of {names} [default: xxh3-64]")
}

/// A part of keys, as people write it.
fn partition_key(text: &str) -> Result<PartitionKey, String> {
    let bytes = |number: &str| number.parse().ok().filter(|bytes| *bytes > 0);
    let parsed = match (text, text.split_once(':')) {
        ("whole", _) => Some(PartitionKey::Whole {}),
        ("hash-tag", _) => Some(PartitionKey::HashTag {}),
        (_, Some(("prefix", number))) => bytes(number).map(|bytes| PartitionKey::Prefix { bytes }),
        (_, Some(("up-to", character))) => match character.as_bytes() {
            [delimiter] => Some(PartitionKey::UpTo { delimiter: *delimiter }),
            _ => None,
        },
        _ => None,
    };
    parsed.ok_or_else(|| "give whole, prefix:8, up-to:/ (one ASCII character) or hash-tag".to_owned())
}

impl ShardingArgs {
    /// Refuses what does not go together, and reads the sample.
    pub fn spec(self) -> Result<ShardingSpec, Failure> {
        let word = KNOWN.into_iter().find(|known| *known == self.sharding).ok_or_else(|| {
            let given = &self.sharding;
            let hash = suggest::close(given, HashFunction::ALL.map(HashFunction::name));
            let meant = match (suggest::close(given, KNOWN), hash) {
                (Some(known), _) => format!(": did you mean {known:?}?"),
                (None, Some(hash)) => format!(": it is a hash function, given as --hash {hash}"),
                (None, None) => String::new(),
            };
            Failure::usage(format!("there is no sharding {given:?}{meant}"))
                .help(format!("choose one of {}", KNOWN.join(", ")))
        })?;
        self.refuse_foreign(word)?;
        let hash = self.hash.as_deref().map(str::parse).transpose();
        let hash = hash.map_err(|error: UnknownHash| Failure::usage(format!("--hash: {error}")))?;
        let hash = hash.unwrap_or(HashFunction::Xxh3_64).to_string();
        let shards = self.shards.unwrap_or(SHARDS);
        let (sharding, presplit) = match word {
            KEY_RANGE => (Sharding::KeyRange {}, self.ranges(shards)?),
            HASH_RANGE => (Sharding::HashRange { hash }, Presplit::HashRanges { shards }),
            FIXED => (Sharding::Fixed { hash, shards }, Presplit::None),
            _ => (Sharding::Named {}, Presplit::Names { names: self.partitions }),
        };
        Ok(ShardingSpec { sharding, partition_key: self.partition_key, presplit })
    }

    /// Refuses a flag that means nothing here.
    fn refuse_foreign(&self, word: &str) -> Result<(), Failure> {
        let (ranges, hashed, named) = (&[KEY_RANGE][..], &[HASH_RANGE, FIXED][..], &[NAMED][..]);
        let flags = [
            ("--split", !self.split.is_empty(), ranges),
            ("--sample", self.sample.is_some(), ranges),
            ("--hex", self.hex.hex, ranges),
            ("--hash", self.hash.is_some(), hashed),
            ("--partitions", !self.partitions.is_empty(), named),
            ("--shards", self.shards.is_some() && word != KEY_RANGE, hashed),
        ];
        let foreign = flags.into_iter().find(|(_, given, of)| *given && !of.contains(&word));
        if let Some((flag, _, of)) = foreign {
            let help = format!("leave it out, or say --sharding {}", of.join(" or --sharding "));
            return Err(Failure::usage(format!("{flag} means nothing with --sharding {word}")).help(help));
        }
        let is_cut = self.shards.is_some_and(|shards| shards != 1 || !self.split.is_empty());
        if is_cut && word == KEY_RANGE && self.sample.is_none() {
            return Err(Failure::usage("--shards cannot cut key ranges: the coordinator does not know where the keys are")
                .help("cut with --split KEY,KEY or --sample FILE, or begin with one shard, which splits as it grows"));
        }
        if self.sample.is_none() && self.columns != Columns::default() {
            return Err(Failure::usage(
                "--column, --field, --weight and --no-header are about the file of --sample",
            )
            .help("name it with --sample FILE, or leave them out"));
        }
        Ok(())
    }

    /// Key ranges, cut at keys that were given or found in a sample.
    fn ranges(&self, shards: u32) -> Result<Presplit, Failure> {
        let Some(file) = &self.sample else {
            let keys: Vec<_> = self.split.iter().map(|key| self.hex.key(key)).collect();
            return Ok(if keys.is_empty() { Presplit::None } else { Presplit::Points { keys } });
        };
        let Keys { items, left_out } =
            keys::read(file, &Wanted { columns: self.columns.clone(), bytes: None })?;
        left_out.told().iter().for_each(|told| say(&format!("warning: {told}")));
        // Only where the cuts are is sent, not the sample. Loads may be broken numbers, weights not.
        let weighed = items.into_iter().map(|item| (item.key, (item.weight * 1_000.0).ceil() as u64));
        let ranges = presplit::from_sample(weighed, shards as usize).map_err(Failure::usage)?;
        let begin = |range: &partage_core::keyspace::key::KeyRange| KeyText::from(&range.begin);
        Ok(Presplit::Points { keys: ranges.iter().skip(1).map(begin).collect() })
    }
}
