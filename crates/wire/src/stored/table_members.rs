//! What a node of tables keeps of its stored replicas beside their rows: changes, each a line of JSON.

use crate::json;
use partage_core::base::id::{ClusterId, PlacementId, ShardId};
use partage_core::node::exchange::{ReplicaKey, Stored};
use serde::{Deserialize, Serialize};

/// One change of what is stored on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberChange {
    /// Everything stored is of that cluster.
    Cluster(ClusterId),
    /// The node stores that of a replica.
    Has(Stored),
    /// The replica is of a child, of a split or a merge: unless the log has something of it, it lacks what its parents had.
    Forms(Stored),
    /// Nothing is stored of the replica any more.
    Gone(ReplicaKey),
}

/// The form of a change.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Form {
    Cluster(String),
    Has(json::Stored),
    Forms(json::Stored),
    Gone { keyspace: String, shard: u64, placement: u64 },
}

/// The changes, one line each.
pub fn encode<'a>(changes: impl IntoIterator<Item = &'a MemberChange>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for change in changes {
        let form = match change {
            MemberChange::Cluster(cluster) => Form::Cluster(cluster.to_string()),
            MemberChange::Has(stored) => Form::Has(stored.into()),
            MemberChange::Forms(stored) => Form::Forms(stored.into()),
            MemberChange::Gone(ReplicaKey { keyspace, shard, placement }) => {
                Form::Gone { keyspace: keyspace.to_string(), shard: shard.0, placement: placement.0 }
            }
        };
        // Strings and numbers can always be written.
        bytes.extend(serde_json::to_vec(&form).unwrap_or_default());
        bytes.push(b'\n');
    }
    bytes
}

/// The changes in such lines.
///
/// # Errors
/// What is no change, in words.
pub fn decode(bytes: &[u8]) -> Result<Vec<MemberChange>, String> {
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| change(serde_json::from_slice(line).map_err(|error| error.to_string())?)).collect()
}

fn change(form: Form) -> Result<MemberChange, String> {
    Ok(match form {
        Form::Cluster(id) => MemberChange::Cluster(id.parse().map_err(|error| format!("{error}"))?),
        Form::Has(stored) => MemberChange::Has(stored.try_into().map_err(|error| format!("{error}"))?),
        Form::Forms(stored) => MemberChange::Forms(stored.try_into().map_err(|error| format!("{error}"))?),
        Form::Gone { keyspace, shard, placement } => {
            let keyspace = keyspace.parse().map_err(|error| format!("{error}"))?;
            let (shard, placement) = (ShardId(shard), PlacementId(placement));
            MemberChange::Gone(ReplicaKey { keyspace, shard, placement })
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::base::id::Epoch;
    use partage_core::keyspace::key::KeyRange;
    use partage_core::keyspace::sharding::Bounds;

    #[test]
    fn changes_are_what_they_were_and_their_text_stays() {
        let keyspace = "stock".parse().expect("a name");
        let replica = ReplicaKey { keyspace, shard: ShardId(3), placement: PlacementId(9) };
        let bounds = Bounds::Keys(KeyRange::all());
        let stored = Stored { replica: replica.clone(), bounds, epoch: Epoch(4), store: 7, damaged: false };
        let changes = [
            MemberChange::Cluster(ClusterId(1)),
            MemberChange::Has(stored.clone()),
            MemberChange::Gone(replica),
            MemberChange::Forms(stored),
        ];
        let bytes = encode(&changes);
        assert_eq!(decode(&bytes), Ok(changes.to_vec()));
        // On the disks of nodes: it may be added to, and not changed.
        let text = String::from_utf8(bytes).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], r#"{"cluster":"00000000000000000000000000000001"}"#);
        assert!(
            lines[1].starts_with(r#"{"has":{"replica":{"keyspace":"stock","shard":3,"placement":9}"#),
            "{text}"
        );
        assert_eq!(lines[2], r#"{"gone":{"keyspace":"stock","shard":3,"placement":9}}"#);
        assert!(lines[3].starts_with(r#"{"forms":{"replica":{"keyspace":"stock""#), "{text}");
        assert!(decode(b"{\"gone\":{}}\n").is_err() && decode(b"x").is_err());
    }
}
