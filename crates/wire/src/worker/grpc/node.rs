//! Nodes as they announce themselves.

use crate::Malformed;
use crate::conversion::Numbered;
use crate::limits::ADDRESS_BYTES;
use crate::malformed::at_most;
use crate::malformed::{At, name_unless_empty, names, none_if_empty};
use crate::proto;
use partage_core::base::name::NodeId;
use partage_core::keyspace::KeyspaceKind;
use partage_core::node::{CheckBack, Health, NodeSpec};
use std::collections::BTreeSet;

impl From<&NodeSpec> for proto::NodeSpec {
    fn from(spec: &NodeSpec) -> Self {
        proto::NodeSpec {
            id: spec.id.to_string(),
            address: spec.address.clone(),
            capacity: Some(spec.capacity),
            zone: spec.zone.as_ref().map(ToString::to_string).unwrap_or_default(),
            rack: spec.rack.as_ref().map(ToString::to_string).unwrap_or_default(),
            labels: spec.labels.iter().map(ToString::to_string).collect(),
            check_path: match &spec.check_back {
                CheckBack::Connect => String::new(),
                CheckBack::Get(path) => path.clone(),
            },
            callback: spec.callback.clone().unwrap_or_default(),
            kinds: kind_words(&spec.kinds),
            resp_address: spec.resp_address.clone().unwrap_or_default(),
        }
    }
}

/// The kinds that a node serves, as it announces them: nothing for what it serves when it says nothing.
pub(crate) fn kind_words(kinds: &BTreeSet<KeyspaceKind>) -> Vec<String> {
    if *kinds == [KeyspaceKind::App].into() {
        Vec::new()
    } else {
        kinds.iter().map(ToString::to_string).collect()
    }
}

/// The kinds that a node announces.
pub(crate) fn kinds(words: &[String]) -> Result<BTreeSet<KeyspaceKind>, Malformed> {
    let kind = |(at, word): (usize, &String)| word.parse().at(&format!("kinds[{at}]"));
    let kinds = words.iter().enumerate().map(kind).collect::<Result<BTreeSet<_>, _>>()?;
    Ok(if kinds.is_empty() { [KeyspaceKind::App].into() } else { kinds })
}

/// How the coordinator checks back, from the path that it should `GET`.
pub(crate) fn check_back(path: Option<String>, field: &str) -> Result<CheckBack, Malformed> {
    let Some(path) = path else { return Ok(CheckBack::Connect) };
    let path = at_most(path, field, ADDRESS_BYTES)?;
    match path.starts_with('/') && path.chars().all(|c| c.is_ascii_graphic()) {
        true => Ok(CheckBack::Get(path)),
        false => Err(Malformed::new(field, format!("{path:?} is no path: begin it with /, without blanks"))),
    }
}

/// Where orders are posted to.
pub(crate) fn callback(url: Option<String>, field: &str) -> Result<Option<String>, Malformed> {
    let Some(url) = url else { return Ok(None) };
    let url = at_most(url, field, ADDRESS_BYTES)?;
    match url.starts_with("http://") && url.chars().all(|c| c.is_ascii_graphic()) {
        true => Ok(Some(url)),
        false => {
            Err(Malformed::new(field, format!("{url:?} is no URL: begin it with http://, without blanks")))
        }
    }
}

/// Where clients of Redis reach the node; whether it is `host:port` is checked with the rest of the announcement.
pub(crate) fn resp_address(address: Option<String>) -> Result<Option<String>, Malformed> {
    address.map(|address| at_most(address, "resp_address", ADDRESS_BYTES)).transpose()
}

/// The last check of every announcement, whichever API it came through.
pub(crate) fn checked(spec: NodeSpec) -> Result<NodeSpec, Malformed> {
    let address = at_most(spec.address.clone(), "address", ADDRESS_BYTES)?;
    if let Some(bad) = address.chars().find(|c| !c.is_ascii_graphic() || *c == '/') {
        return Err(Malformed::new("address", format!("has {bad:?} in it: give host:port")));
    }
    let field = |error: &partage_core::node::NodeSpecError| match error {
        partage_core::node::NodeSpecError::Capacity { .. } => "capacity",
        partage_core::node::NodeSpecError::Address { .. } => "address",
        partage_core::node::NodeSpecError::RespAddress { .. } => "resp_address",
        partage_core::node::NodeSpecError::Callback { .. } => "callback",
        partage_core::node::NodeSpecError::Labels { .. } => "labels",
    };
    spec.check().map_err(|error| Malformed::new(field(&error), &error))?;
    Ok(spec)
}

impl TryFrom<proto::NodeSpec> for NodeSpec {
    type Error = Malformed;
    fn try_from(form: proto::NodeSpec) -> Result<Self, Malformed> {
        checked(NodeSpec {
            id: NodeId::new(&form.id).at("id")?,
            address: form.address,
            capacity: form.capacity.unwrap_or(1.0),
            zone: name_unless_empty(&form.zone, "zone")?,
            rack: name_unless_empty(&form.rack, "rack")?,
            labels: names(&form.labels, "labels")?,
            check_back: check_back(none_if_empty(form.check_path), "check_path")?,
            callback: callback(none_if_empty(form.callback), "callback")?,
            kinds: kinds(&form.kinds)?,
            resp_address: resp_address(none_if_empty(form.resp_address))?,
        })
    }
}

/// A health by its number. One that this reader does not know yet is "unknown": nothing unsafe hangs on it.
pub(crate) fn health(number: i32) -> Health {
    Health::of_number(number).unwrap_or(Health::Unknown)
}
