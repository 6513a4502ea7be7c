//! The endpoints of a flight: one for each partition, in their order, or one for an interval of keys. Each can be read at each
//! node; the holders of its first range are named first.

use crate::descriptor::FlightForm;
use crate::kind::Kind;
use crate::limits::{LOCATIONS, PARTITIONS};
use crate::service::uri;
use crate::status;
use crate::ticket::{Cut, TicketForm, key, key_text};
use arrow_flight::{FlightDescriptor, FlightEndpoint, FlightInfo, Location, Ticket};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use partage_core::base::name::NodeId;
use partage_service::shuffle::plan::Plan;
use partage_service::shuffle::{Bytes, ShuffleId};
use partage_shuffle::network::{LocalNode, LocalPartition};
use serde_json::json;
use std::collections::BTreeMap;
use tonic::Status;

/// Where the nodes of the pool are.
pub(crate) type Addresses = BTreeMap<NodeId, String>;

/// The nodes at which an endpoint can be read: its holders first, then others, of which each endpoint has another one first. Of a
/// large pool no more nodes are looked at than are named.
fn locations(holders: &[NodeId], at: usize, addresses: &Addresses, nodes: &[&NodeId]) -> Vec<Location> {
    let begin = at % nodes.len().max(1);
    let (before, after) = nodes.split_at(begin);
    let others = after.iter().chain(before).copied();
    let mut named: Vec<&NodeId> = Vec::new();
    for node in holders.iter().filter(|node| addresses.contains_key(*node)).chain(others) {
        if named.len() == LOCATIONS {
            break;
        }
        if !named.contains(&node) {
            named.push(node);
        }
    }
    let uris = named.into_iter().filter_map(|node| addresses.get(node));
    uris.map(|address| Location { uri: uri(address) }).collect()
}

fn endpoint(ticket: &TicketForm, location: Vec<Location>, told: Option<u64>) -> FlightEndpoint {
    let told = told.map(|records| json!({ "records": records }).to_string()).unwrap_or_default();
    FlightEndpoint {
        ticket: Some(Ticket { ticket: ticket.bytes().into() }),
        location,
        expiration_time: None,
        app_metadata: told.into(),
    }
}

/// An end of an interval of keys: as a row, or as bytes.
fn end(kind: &Kind, row: Option<&String>, bytes: Option<&String>) -> Result<Option<Bytes>, Status> {
    match (row, bytes) {
        (None, None) => Ok(None),
        (None, Some(text)) => key(text).map(Some),
        (Some(text), None) => {
            let why = |why| status::malformed(format!("an end of an interval is no base64: {why}"));
            kind.key(&STANDARD.decode(text).map_err(why)?).map(Some)
        }
        (Some(_), Some(_)) => {
            Err(status::malformed("an end of an interval is a row and a key: give one of both"))
        }
    }
}

/// A flight that is read, and what is known of it.
pub(crate) struct Flight<'a> {
    pub(crate) form: &'a FlightForm,
    pub(crate) shuffle: ShuffleId,
    pub(crate) kind: &'a Kind,
    pub(crate) plan: &'a Plan,
}

impl Flight<'_> {
    fn partitions(&self, node: &LocalNode, addresses: &Addresses) -> Result<Vec<FlightEndpoint>, Status> {
        let n = self.form.partitions.unwrap_or(1);
        if n == 0 || n > PARTITIONS {
            let why = format!("there is no flight of {n} partitions: ask for 1 to {PARTITIONS}");
            return Err(status::no_partition(why));
        }
        let default = if self.form.combine { Cut::Keys } else { Cut::default() };
        let cut = self.form.cut.unwrap_or(default);
        let nodes: Vec<&NodeId> = addresses.keys().collect();
        let of_partition = |(i, partition): (u64, LocalPartition)| {
            let ticket = TicketForm {
                shuffle: self.shuffle.to_string(),
                partition: Some(i),
                of: Some(n),
                cut,
                combine: self.form.combine,
                compression: self.form.compression,
                ..TicketForm::default()
            };
            let at = usize::try_from(i).unwrap_or_default();
            let records = (cut == Cut::Records).then_some(partition.records);
            endpoint(&ticket, locations(&partition.holders, at, addresses, &nodes), records)
        };
        Ok((0..).zip(node.partitions(self.plan, n)).map(of_partition).collect())
    }

    fn keys(&self, addresses: &Addresses) -> Result<FlightEndpoint, Status> {
        let form = self.form;
        let first = end(self.kind, form.first.as_ref(), form.first_key.as_ref())?;
        let end = end(self.kind, form.end.as_ref(), form.end_key.as_ref())?;
        let ticket = TicketForm {
            shuffle: self.shuffle.to_string(),
            first_key: first.as_deref().map(key_text),
            end_key: end.as_deref().map(key_text),
            combine: form.combine,
            compression: form.compression,
            ..TicketForm::default()
        };
        let nodes: Vec<&NodeId> = addresses.keys().collect();
        Ok(endpoint(&ticket, locations(&[], 0, addresses, &nodes), None))
    }

    /// What a client hears of the shuffle: its schema, and where its partitions are read.
    pub(crate) fn info(
        &self,
        descriptor: FlightDescriptor,
        node: &LocalNode,
        addresses: &Addresses,
    ) -> Result<FlightInfo, Status> {
        let info = FlightInfo::new().with_descriptor(descriptor).with_ordered(true);
        let info =
            info.try_with_schema(self.kind.schema()).map_err(|why| Status::internal(why.to_string()))?;
        if self.form.has_keys() {
            return Ok(info.with_endpoint(self.keys(addresses)?));
        }
        if self.form.combine {
            // How many keys there are is not known before they are read.
            return Ok(info.with_endpoints(self.partitions(node, addresses)?));
        }
        let bytes: u64 = self.plan.winners.values().map(|winner| winner.bytes).sum();
        let known = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let told = json!({ "records": self.plan.records(), "bytes": bytes }).to_string();
        Ok(info
            .with_endpoints(self.partitions(node, addresses)?)
            .with_total_records(known(self.plan.records()))
            .with_total_bytes(known(bytes))
            .with_app_metadata(told))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_come_first_and_others_are_not_all_asked_alike() {
        let node = |name: &str| NodeId::new(name).unwrap();
        let addresses: Addresses =
            ["a", "b", "c", "d"].map(|name| (node(name), format!("{name}:7700"))).into();
        let nodes: Vec<&NodeId> = addresses.keys().collect();
        let uris = |holders: &[NodeId], at| -> Vec<String> {
            locations(holders, at, &addresses, &nodes).into_iter().map(|location| location.uri).collect()
        };
        let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| format!("grpc+tcp://{name}:7700"));
        assert_eq!(uris(&[node("c"), node("gone")], 0), [&c, &a, &b, &d].map(String::clone));
        assert_eq!(uris(&[node("c")], 1), [&c, &b, &d, &a].map(String::clone));
        assert_eq!(uris(&[], 0).len(), 4);
        assert!(locations(&[node("a")], 5, &Addresses::new(), &[]).is_empty());
        let many: Addresses = (0..50).map(|at| (node(&format!("n{at}")), String::new())).collect();
        let nodes: Vec<&NodeId> = many.keys().collect();
        assert_eq!(locations(&[], 49, &many, &nodes).len(), LOCATIONS);
    }
}
