//! `partage shuffle bounds`, how partitions are cut, and keys for people.

use super::nodes::{ShuffleNodes, failure, shuffle};
use crate::output::{Failure, Output, table};
use clap::{Args, ValueEnum};
use partage_shuffle_client::{CutBy, ShuffleId};
use serde_json::{Value, json};

/// Where partitions are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Cut {
    /// At records: sizes differ by at most one record
    Records,
    /// At bytes of keys and values: sizes differ from their share by at most one record's bytes
    Bytes,
    /// Only between different keys: a key is in one partition, however many records it has
    Keys,
}

impl From<Cut> for CutBy {
    fn from(cut: Cut) -> CutBy {
        match cut {
            Cut::Records => CutBy::Records,
            Cut::Bytes => CutBy::Bytes,
            Cut::Keys => CutBy::Keys,
        }
    }
}

/// `partage shuffle bounds`
#[derive(Debug, Args)]
pub struct BoundsArgs {
    /// Handle of the shuffle, or its number
    #[arg(value_parser = shuffle)]
    shuffle: ShuffleId,
    /// Number of partitions, 1 to 16384
    #[arg(long, value_name = "COUNT")]
    partitions: u64,
    /// How partitions are cut
    #[arg(long, value_enum, default_value_t = Cut::Records)]
    cut: Cut,
    #[command(flatten)]
    nodes: ShuffleNodes,
}

impl BoundsArgs {
    /// Runs it.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let client = self.nodes.connect().await?;
        let keys = client.bounds(self.shuffle, self.partitions, self.cut.into()).await.map_err(failure)?;
        if output.is_json() {
            let keys: Vec<Value> = keys.iter().map(|key| told(key)).collect();
            return output.json(&json!({
                "shuffle": self.shuffle.to_string(), "partitions": self.partitions, "bounds": keys,
            }));
        }
        let mut rows = table(["partition", "begins with", "as text"]);
        for (at, key) in (0..).zip(&keys) {
            let name = if at == self.partitions { "last key".to_owned() } else { at.to_string() };
            rows.add_row([name, hex(key), text(key).unwrap_or_default().to_owned()]);
        }
        output.text(&rows.trim_fmt());
        Ok(())
    }
}

/// A key for programs.
pub fn told(key: &[u8]) -> Value {
    json!({ "hex": hex(key), "text": text(key) })
}

/// Two digits for each byte.
pub fn hex(key: &[u8]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The key as people read it, if it is a text without characters that a terminal would act on.
pub fn text(key: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(key).ok()?;
    (!text.chars().any(char::is_control)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_shown_as_hex_and_as_text_where_they_are_one() {
        assert_eq!(told("né".as_bytes()), json!({ "hex": "6ec3a9", "text": "né" }));
        assert_eq!(told(&[0xff, 0]), json!({ "hex": "ff00", "text": null }));
        assert_eq!((text(b"a\x1b[2J"), text(b"")), (None, Some("")));
    }
}
