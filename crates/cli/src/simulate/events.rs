//! Reads what is said about nodes and events on the command line.

use crate::output::Failure;
use partage_core::base::count::counted;
use partage_core::base::name::{NodeId, Zone};
use partage_core::base::suggest;
use partage_core::keyspace::key::Key;
use partage_core::limits;
use partage_service::whatif::{Event, Heat, Node};

/// How an event is written, for help and for mistakes.
pub const FORMS: &str =
    "join:2, leave:n3, grow:2, hot:KEY:50 (times), hot:KEY:20% (of all load), hot::50 (the heaviest key)";

/// What happens unless told: one joins, one in the middle leaves, twice the keys, one key becomes hot. Where all
/// keys weigh the same, 50 times one of them is still nothing; there it gets a tenth of the load.
pub fn usual(nodes: usize, weighted: bool) -> Vec<String> {
    let middle = nodes.div_ceil(2);
    let hot = if weighted { "hot::50" } else { "hot::10%" };
    vec!["join:1".into(), format!("leave:n{middle}"), "grow:2".into(), hot.into()]
}

/// The nodes `n1`, `n2`, … with their capacities and zones.
pub fn nodes(count: usize, capacities: &[String], zones: Option<u32>) -> Result<Vec<Node>, Failure> {
    if count == 0 {
        return Err(Failure::usage("there are no nodes").help("give --nodes 1 or more"));
    }
    if count > limits::NODES {
        return Err(Failure::usage(format!("{count} nodes are too many"))
            .help(format!("the limit is {}", limits::NODES)));
    }
    if zones == Some(0) {
        return Err(Failure::usage("there are no zones").help("give --zones 1 or more, or leave it out"));
    }
    let mut nodes = (1..=count).map(|number| node(number, zones)).collect::<Result<Vec<Node>, Failure>>()?;
    let mut next = 0;
    for part in capacities.iter().flat_map(|list| list.split(',')) {
        let (name, number) = part.split_once('=').map_or((None, part), |(name, number)| (Some(name), number));
        let at = match name {
            None => next,
            Some(name) => {
                let found = nodes.iter().position(|node| node.name.as_str() == name);
                found.ok_or_else(|| {
                    Failure::usage(format!("--capacity names {name:?}, which is no node"))
                        .help(format!("nodes are named n1 to n{count}"))
                })?
            }
        };
        let capacity = number.trim().parse::<u32>().ok().filter(|n| (1..=limits::NODE_WEIGHT).contains(n));
        let capacity = capacity.ok_or_else(|| {
            Failure::usage(format!("the capacity {number:?} is not possible"))
                .help(format!("give a whole number from 1 to {}", limits::NODE_WEIGHT))
        })?;
        let node = nodes.get_mut(at).ok_or_else(|| {
            Failure::usage(format!("there are more capacities than {}", counted(count, "node")))
                .help("give one for each node at the most, or name nodes: --capacity n3=2")
        })?;
        node.capacity = capacity;
        next = at + 1;
    }
    Ok(nodes)
}

fn node(number: usize, zones: Option<u32>) -> Result<Node, Failure> {
    let name = NodeId::new(&format!("n{number}")).map_err(Failure::failed)?;
    let zone = |zones: u32| Zone::new(&format!("z{}", (number as u64 - 1) % u64::from(zones) + 1));
    Ok(Node { name, capacity: 1, zone: zones.map(zone).transpose().map_err(Failure::failed)? })
}

/// The events, in order. Nodes that join go on counting where the others end.
pub fn events(texts: &[String], nodes: usize, zones: Option<u32>) -> Result<Vec<Event>, Failure> {
    let mut there = nodes;
    texts.iter().map(|text| event(text, &mut there, zones)).collect()
}

fn event(text: &str, there: &mut usize, zones: Option<u32>) -> Result<Event, Failure> {
    let malformed =
        |why: String| Failure::usage(format!("the event {text:?} {why}")).help(format!("write {FORMS}"));
    let Some((kind, rest)) = text.split_once(':') else {
        return Err(malformed("has no colon".into()));
    };
    let number = |text: &str| {
        text.parse::<f64>().map_err(|_| malformed(format!("has {text:?} where a number is needed")))
    };
    match kind {
        "join" => {
            let count = rest.parse::<usize>().ok().filter(|count| (1..=limits::NODES).contains(count));
            let count = count.ok_or_else(|| malformed(format!("lets {rest:?} nodes join")))?;
            let joined: Result<Vec<Node>, Failure> =
                (*there + 1..=*there + count).map(|number| node(number, zones)).collect();
            *there += count;
            Ok(Event::Join { nodes: joined? })
        }
        "leave" => {
            let node = NodeId::new(rest).map_err(|error| malformed(format!("names no node: {error}")))?;
            Ok(Event::Leave { node })
        }
        "grow" => Ok(Event::Grow { factor: number(rest)? }),
        "hot" => {
            let Some((key, heat)) = rest.rsplit_once(':') else {
                return Err(malformed("does not say how hot".into()));
            };
            let heat = match heat.strip_suffix('%') {
                Some(percent) => Heat::Share(number(percent)? / 100.0),
                None => Heat::Times(number(heat)?),
            };
            let key = (!key.is_empty()).then(|| Key::new(key.as_bytes())).transpose();
            Ok(Event::Hot { key: key.map_err(|error| malformed(format!("has {error}")))?, heat })
        }
        _ => {
            let nearest = suggest::nearest(kind, ["join", "leave", "grow", "hot"]).unwrap_or("join");
            Err(malformed(format!("is of no known kind: did you mean {nearest}?")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Event, Failure> {
        event(text, &mut 3, Some(2))
    }

    #[test]
    fn events_are_read_as_they_are_written() {
        let Event::Join { nodes } = parsed("join:2").unwrap() else { panic!("a join") };
        let told: Vec<_> =
            nodes.iter().map(|n| (n.name.as_str(), n.zone.as_ref().unwrap().as_str())).collect();
        assert_eq!(told, [("n4", "z2"), ("n5", "z1")]);
        let key = Key::new(b"a:b").unwrap();
        assert_eq!(parsed("hot:a:b:50").unwrap(), Event::Hot { key: Some(key), heat: Heat::Times(50.0) });
        assert_eq!(parsed("hot::20%").unwrap(), Event::Hot { key: None, heat: Heat::Share(0.2) });
        assert_eq!(parsed("grow:1.5").unwrap(), Event::Grow { factor: 1.5 });
        assert!(usual(1, true).iter().chain(&usual(8, false)).all(|text| parsed(text).is_ok()));
    }

    #[test]
    fn malformed_events_are_told_how_to_write_them() {
        for text in [
            "",
            "join",
            "join:",
            "join:0",
            "join:-1",
            "leave:",
            "leave:a b",
            "grow:x",
            "hot:k",
            "hot:k:x%",
            "jion:1",
        ] {
            assert!(parsed(text).unwrap_err().to_string().contains("join:2, leave:n3"), "{text}");
        }
    }

    #[test]
    fn capacities_go_by_place_or_by_name() {
        let capacities = |list: &[&str]| {
            let list: Vec<String> = list.iter().map(|text| (*text).to_owned()).collect();
            nodes(3, &list, None).map(|nodes| nodes.iter().map(|node| node.capacity).collect::<Vec<_>>())
        };
        assert_eq!(capacities(&["4,2"]).unwrap(), [4, 2, 1]);
        assert_eq!(capacities(&["n3=5", "n1=2"]).unwrap(), [2, 1, 5]);
        for bad in ["0", "-1", "x", "1.5", "10001", "n9=1", "1,1,1,1"] {
            assert!(capacities(&[bad]).is_err(), "{bad}");
        }
        assert!(nodes(0, &[], None).is_err() && nodes(limits::NODES + 1, &[], None).is_err());
        assert!(nodes(2, &[], Some(0)).is_err());
    }
}
