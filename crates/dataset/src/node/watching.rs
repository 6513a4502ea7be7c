//! The mirror: what all nodes publish, as news for the machine.

use super::driving::Input;
use super::trouble::{CoordinationHealth, CoordinationPart};
use crate::limits::COORDINATION_PAUSE;
use partage_clock::unix_ms;
use partage_coordination::{Change, Coordination, Key, Scope, Update};
use partage_service::dataset::node::{Event, Layout, News};
use partage_wire::dataset::presence::{Held, Holding, Presence};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::sleep;

/// Follows all keys below `root`, for as long as the driver listens.
pub async fn follow(
    coordination: Arc<dyn Coordination>,
    root: Key,
    health: Arc<CoordinationHealth>,
    inputs: mpsc::Sender<Input>,
) {
    let mut mirror = Mirror { root, held: BTreeMap::new() };
    loop {
        let error = match coordination.watch(Scope::Below(mirror.root.clone()), None).await {
            Err(error) => error,
            Ok(mut watch) => loop {
                match watch.next().await {
                    Err(error) => break error,
                    Ok(update) => {
                        health.works(CoordinationPart::Mirror);
                        let (is_whole, news) = mirror.fold(update);
                        let event = Event::Mirror { is_whole, news };
                        if inputs.send(Input::Core(event)).await.is_err() {
                            return;
                        }
                    }
                }
            },
        };
        health.failed(CoordinationPart::Mirror, error);
        sleep(COORDINATION_PAUSE).await;
        if inputs.is_closed() {
            return;
        }
    }
}

/// The partitions that each node last published: a key names all of a version, and the machine wants the changes.
struct Mirror {
    root: Key,
    held: BTreeMap<Holding, Held>,
}

impl Mirror {
    fn fold(&mut self, update: Update) -> (bool, Vec<News>) {
        let mut news = Vec::new();
        match update {
            Update::Resync { entries, .. } => {
                self.held.clear();
                for (key, entry) in entries {
                    self.hear(&key, Some(&entry.value), &mut news);
                }
                (true, news)
            }
            Update::Changes { changes, .. } => {
                for Change { key, entry } in changes {
                    self.hear(&key, entry.as_ref().map(|entry| entry.value.as_ref()), &mut news);
                }
                (false, news)
            }
        }
    }

    fn hear(&mut self, key: &Key, value: Option<&[u8]>, news: &mut Vec<News>) {
        let prefix = self.root.as_str().len() + 1;
        match Presence::decode(key.as_str().get(prefix..).unwrap_or_default(), value) {
            Ok(Presence::Node(address, claim)) => news.push(News::Node(address, claim)),
            Ok(Presence::Pin(dataset, address, pin)) => {
                match pin.as_ref().is_none_or(|pin| pin.is_plausible(unix_ms())) {
                    true => news.push(News::Pin(dataset, address, pin)),
                    false => tracing::warn!(
                        %dataset, %address,
                        "ignored an order with an impossible number: its sender is not a node of this cluster"
                    ),
                }
            }
            Ok(Presence::Holding(holding, held)) => self.hold(holding, held, news),
            Err(strange) => tracing::debug!(%strange, "not understood"),
        }
    }

    /// Adds the news of each partition that changed.
    fn hold(&mut self, holding: Holding, held: Option<Held>, news: &mut Vec<News>) {
        let before = match &held {
            Some(held) => self.held.insert(holding.clone(), held.clone()),
            None => self.held.remove(&holding),
        };
        let (was, is) = (before.unwrap_or_else(nothing), held.unwrap_or_else(nothing));
        let of = |partition: u32, layout: Option<Layout>| News::Partition {
            dataset: holding.dataset.clone(),
            version: holding.version.clone(),
            partition,
            address: holding.address.clone(),
            layout,
        };
        news.extend(was.partitions.difference(&is.partitions).map(|partition| of(*partition, None)));
        let is_new = |partition: &&u32| was.layout != is.layout || !was.partitions.contains(partition);
        news.extend(is.partitions.iter().filter(is_new).map(|partition| of(*partition, Some(is.layout))));
        if was.keys != is.keys {
            let Holding { dataset, version, address } = holding;
            news.push(News::Keys { dataset, version, address, keys: is.keys });
        }
    }
}

fn nothing() -> Held {
    let partitioner = partage_service::dataset::Partitioner::JavaBytes;
    let layout = Layout { partitioner, partitions: 0, digest: 0 };
    Held { layout, partitions: BTreeSet::new(), keys: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_coordination::{Entry, Version};
    use partage_service::dataset::{Address, Partitioner};

    fn mirror() -> Mirror {
        Mirror { root: Key::new("datasets/v1/test").unwrap(), held: BTreeMap::new() }
    }

    fn key(name: &str) -> Key {
        Key::new(format!("datasets/v1/test/{name}")).unwrap()
    }

    fn entry(value: &str) -> Entry {
        Entry { value: value.to_owned().into(), version: Version::new(1), session: None }
    }

    fn changes(mirror: &mut Mirror, changes: &[(&str, Option<&str>)]) -> Vec<News> {
        let change =
            |(name, value): &(&str, Option<&str>)| Change { key: key(name), entry: value.map(entry) };
        let update = Update::Changes { at: Version::new(1), changes: changes.iter().map(change).collect() };
        mirror.fold(update).1
    }

    /// The partitions in the news, and how the version is said to be divided.
    fn said(news: &[News]) -> Vec<(u32, Option<u32>)> {
        let of = |news: &News| match news {
            News::Partition { partition, layout, .. } => (*partition, layout.map(|layout| layout.partitions)),
            other => panic!("{other:?}"),
        };
        news.iter().map(of).collect()
    }

    #[test]
    fn of_a_version_only_what_has_changed_is_news() {
        let mut mirror = mirror();
        let name = "datasets/names/1/a:80";
        assert_eq!(
            said(&changes(&mut mirror, &[(name, Some("java-bytes 4 00000000000000d1 3"))])),
            [(0, Some(4)), (1, Some(4))]
        );
        assert_eq!(
            said(&changes(&mut mirror, &[(name, Some("java-bytes 4 00000000000000d1 6"))])),
            [(0, None), (2, Some(4))]
        );
        assert_eq!(said(&changes(&mut mirror, &[(name, Some("java-bytes 4 00000000000000d1 6"))])), []);
        assert_eq!(
            said(&changes(&mut mirror, &[(name, Some("java-bytes 5 00000000000000d1 6"))])),
            [(1, Some(5)), (2, Some(5))]
        );
        assert_eq!(said(&changes(&mut mirror, &[(name, None)])), [(1, None), (2, None)]);
    }

    #[test]
    fn the_whole_begins_anew_and_what_is_strange_is_passed_over() {
        let mut mirror = mirror();
        changes(&mut mirror, &[("datasets/names/1/a:80", Some("java-bytes 4 00000000000000d1 f"))]);
        let entries = ["datasets/names/1/a:80", "nodes/b:80", "other/b:80"].map(|name| {
            let value = if name.starts_with("nodes") { "2 taken" } else { "java-bytes 4 00000000000000d1 1" };
            (key(name), entry(value))
        });
        let (is_whole, news) = mirror.fold(Update::Resync { at: Version::new(2), entries: entries.into() });
        let layout = Layout { partitioner: Partitioner::JavaBytes, partitions: 4, digest: 0xd1 };
        assert!(is_whole && news.len() == 2, "{news:?}");
        assert!(
            matches!(&news[0], News::Partition { partition: 0, layout: Some(found), .. } if *found == layout)
        );
        assert!(
            matches!(&news[1], News::Node(address, Some(_)) if *address == Address::new("b:80").unwrap())
        );
    }
}
