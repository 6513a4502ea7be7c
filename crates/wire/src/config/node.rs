//! `node.toml`.

use super::{ConfigError, DoorFile};
use partage_core::base::name::{Label, NameError, NodeId, Zone};
use partage_core::node::NodeSpec;
use serde::Deserialize;

/// The file. A key that is absent comes from the command line or has a default.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeFile {
    /// The node's name in the cluster, the same across its restarts.
    pub id: Option<String>,
    /// `host:port` to listen on.
    pub listen: Option<String>,
    /// `host:port` where others reach it; absent = `listen`.
    pub address: Option<String>,
    /// Whether it may listen on an address that other machines can reach, although there is no authentication.
    pub insecure: Option<bool>,
    /// Which clients may connect, and what they may cost.
    pub door: DoorFile,
    /// `host:port` of each coordinator.
    pub coordinators: Vec<String>,
    /// Its share of every load; absent = 1.
    pub capacity: Option<f64>,
    /// The failure domain of the node: what is in one zone may fail together.
    pub zone: Option<String>,
    /// A smaller failure domain inside the zone.
    pub rack: Option<String>,
    /// Free words to pin and exclude by.
    pub labels: Vec<String>,
    /// What a node of shuffles does in its pool; empty = all that there is. Other nodes have none.
    pub roles: Vec<String>,
}

impl NodeFile {
    /// The announcement of the node `id` at `address`, checked. Who knows roles has taken them out before.
    pub fn spec(&self, file: &str, id: &str, address: &str) -> Result<NodeSpec, ConfigError> {
        let value = |what: String| ConfigError::Value { file: file.to_owned(), what };
        let name = |error: NameError| value(error.to_string());
        if !self.roles.is_empty() {
            return Err(value(
                "roles are those of a node of shuffles: take the key out, or start `partage shuffle serve`"
                    .to_owned(),
            ));
        }
        let zone = |zone: &Option<String>| zone.as_deref().map(Zone::new).transpose();
        let spec = NodeSpec {
            capacity: self.capacity.unwrap_or(1.0),
            zone: zone(&self.zone).map_err(name)?,
            rack: zone(&self.rack).map_err(name)?,
            labels: self
                .labels
                .iter()
                .map(|label| Label::new(label))
                .collect::<Result<_, _>>()
                .map_err(name)?,
            ..NodeSpec::new(NodeId::new(id).map_err(name)?, address)
        };
        spec.check().map_err(|error| value(error.to_string()))?;
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_refused_where_nobody_has_taken_them_out() {
        let file = NodeFile { roles: vec!["buffer".to_owned()], ..NodeFile::default() };
        let why = file.spec("node.toml", "n1", "127.0.0.1:1").unwrap_err().to_string();
        assert!(why.contains("node.toml") && why.contains("partage shuffle serve"), "{why}");
        assert!(NodeFile::default().spec("node.toml", "n1", "127.0.0.1:1").is_ok());
    }
}
