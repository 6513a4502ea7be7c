//! The sample data of `up`: the package index, and an empty keyspace whose plans wait for a person.

use crate::client::Door;
use crate::output::Failure;
use partage_kv::Seed;
use partage_wire::json::{Command, KeyText, Keyspace, Presplit, Sharding, Summary};
use std::time::Duration;

/// 63,436 packages of Debian 12, one JSON object a line; see `samples/README.md`.
pub static PACKAGES: &[u8] = include_bytes!("../../../../samples/debian-bookworm-packages.jsonl.gz");

/// Shards of `packages`: enough that moves are seen, few enough that a drawing is.
const SHARDS: u32 = 48;

/// The sample.
pub struct Sample {
    seed: Seed,
}

/// Unpacks it.
pub fn read() -> Result<Sample, Failure> {
    let seed = Seed::from_gzip("packages", "the package index", PACKAGES, "package");
    Ok(Sample { seed: seed.map_err(Failure::failed)? })
}

impl Sample {
    /// What nodes begin with.
    pub fn seed(&self) -> Seed {
        self.seed.clone()
    }

    /// How many packages.
    pub fn len(&self) -> usize {
        self.seed.len()
    }

    /// Creates the keyspaces that are not there from last time. Whoever runs one node may add more later.
    pub async fn create_keyspaces(&self, door: &Door) -> Result<(), Failure> {
        let keys = self.seed.keys().map(|key| KeyText::Text(String::from_utf8_lossy(key).into_owned()));
        let packages = Command::CreateKeyspace {
            keyspace: keyspace("packages", Sharding::KeyRange {}, 2, "automatic"),
            presplit: Presplit::SampleKeys { keys: keys.collect(), weights: vec![], shards: SHARDS },
            ahead: true,
        };
        let notes = Command::CreateKeyspace {
            keyspace: keyspace("notes", Sharding::HashRange { hash: "xxh3-64".to_owned() }, 1, "suggested"),
            presplit: Presplit::HashRanges { shards: 12 },
            ahead: true,
        };
        for (name, command) in [("packages", packages), ("notes", notes)] {
            if door.get::<Keyspace>(&format!("/v1/keyspaces/{name}")).await.is_err() {
                door.command(command, false).await?;
            }
        }
        Ok(())
    }
}

fn keyspace(name: &str, sharding: Sharding, replicas: u32, mode: &str) -> Keyspace {
    Keyspace {
        name: name.to_owned(),
        kind: None,
        sharding,
        partition_key: None,
        ownership: Some("exclusive".to_owned()),
        replicas: Some(replicas),
        policy: None,
        mode: Some(mode.to_owned()),
        spread: None,
        constraint: Default::default(),
        throttle: Default::default(),
        resharding: Default::default(),
    }
}

/// Until every shard has a leader and nothing loads any more.
pub async fn wait_until_served(door: &Door, most: Duration) -> Result<(), Failure> {
    let served = async {
        loop {
            let summary: Summary = door.get("/v1/status").await?;
            let led = summary.shards.led > 0 && summary.shards.leaderless == 0;
            if led && summary.loads == 0 && summary.moves == 0 {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let late = || Failure::failed(format!("the shards are not all served after {} s", most.as_secs()));
    tokio::time::timeout(most, served).await.map_err(|_| late().help("see `partage status`"))?
}
