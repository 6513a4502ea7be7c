//! Parts of commands over gRPC, straight to core's; the commands themselves are in [`conversion`](crate::admin::conversion).

use crate::Malformed;
use crate::malformed::{At, each, names, required};
use crate::proto::{self, create_keyspace, split_shard};
use partage_core::cluster::admin::{Command, Presplit, SplitAt};
use partage_core::keyspace::key::Key;

fn keys(keys: Vec<Vec<u8>>) -> Result<Vec<Key>, Malformed> {
    each(keys, "keys", |key| Key::new(&key).at("key"))
}

impl TryFrom<create_keyspace::Presplit> for Presplit {
    type Error = Malformed;
    fn try_from(form: create_keyspace::Presplit) -> Result<Self, Malformed> {
        use create_keyspace::Presplit as From;
        Ok(match form {
            From::Points(by) => Presplit::Points(keys(by.keys)?),
            From::SampleKeys(by) => {
                Presplit::SampleKeys { keys: keys(by.keys)?, weights: by.weights, shards: by.shards }
            }
            From::HashRanges(by) => Presplit::HashRanges(by.shards),
            From::Names(by) => Presplit::Names(names(&by.names, "names")?),
        })
    }
}

impl TryFrom<split_shard::At> for SplitAt {
    type Error = Malformed;
    fn try_from(form: split_shard::At) -> Result<Self, Malformed> {
        Ok(match form {
            split_shard::At::Keys(by) => SplitAt::Keys(keys(by.keys)?),
            split_shard::At::Points(by) => SplitAt::Points(by.points),
        })
    }
}

/// What the request asks for; whether it is a dry run, its field `dry_run` says.
impl TryFrom<proto::CommandRequest> for Command {
    type Error = Malformed;
    fn try_from(form: proto::CommandRequest) -> Result<Self, Malformed> {
        required(form.command, "do")
    }
}
