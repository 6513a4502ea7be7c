//! Public types of one crate have different names: one name, one thing.
//!
//! A reader who meets `Plan` in a file of `core` should not have to look which of two plans it is. The crates that still have
//! such names are listed with them; a list may only shrink. Each state machine of a service counts as a crate. The machines of
//! one service name what goes in and comes out of them alike, and that is a term: each may have its own `Event`, `Effect` and
//! `Settings`.

use std::collections::BTreeMap;

/// Names that each state machine below [`MACHINES`] has once.
const OF_MACHINES: [&str; 3] = ["Effect", "Event", "Settings"];

/// Where the state machines of services are.
const MACHINES: &str = "crates/service/src/";

/// Crates that are not looked at, and why.
const EXEMPT: [(&str, &str); 1] = [("cli", "each command has its arguments in a module of its own")];

/// Names that a crate has more than once still.
const KNOWN: [(&str, &[&str]); 8] = [
    (
        "core",
        &[
            "Action",
            "Event",
            "Jump",
            "NodeSpec",
            "Preference",
            "Problem",
            "Reason",
            "Rendezvous",
            "Ring",
            "Settings",
            "Since",
            "Unplaced",
            "Verdict",
        ],
    ),
    ("dataset", &["Error", "Input", "Object", "Options", "Place"]),
    ("engine", &["Options"]),
    ("service/src/dataset", &["Failure"]),
    ("service/src/shuffle", &["Failed"]),
    ("service/src/table", &["Part"]),
    ("table", &["StartError"]),
    ("wire", &["Known", "Manifest", "ManifestError", "Node", "Presence", "ShardPage"]),
];

/// A public type: its file, its name, its line.
pub type PublicType<'a> = (&'a str, &'a str, usize);

/// Every name that a crate has for two public types and that is not known, and every known one that has become unique.
pub fn findings<'a>(types: impl IntoIterator<Item = PublicType<'a>>) -> Vec<String> {
    let mut places: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    let mut machines: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    for (file, name, line) in types {
        let Some(own) = owner(file) else { continue };
        let place = format!("{file}:{line}");
        if file.starts_with(MACHINES) && OF_MACHINES.contains(&name) {
            let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
            machines.entry((folder, name)).or_default().push(place);
        } else if !EXEMPT.iter().any(|(exempt, _)| *exempt == own) {
            places.entry((own, name)).or_default().push(place);
        }
    }
    let is_known =
        |own: &str, name: &str| KNOWN.iter().any(|(known, names)| *known == own && names.contains(&name));
    let twice =
        |((own, name), places): &(&(&str, &str), &Vec<String>)| places.len() > 1 && !is_known(own, name);
    let new = places.iter().filter(twice).chain(machines.iter().filter(|(_, places)| places.len() > 1)).map(
        |((_, name), places)| {
            format!("{}: `{name}` is also {}; give each its own name", places[0], places[1..].join(", "))
        },
    );
    let known = KNOWN.iter().flat_map(|(own, names)| names.iter().map(move |name| (*own, *name)));
    let unique =
        known.filter(|key| places.get(key).is_none_or(|places| places.len() < 2)).map(|(own, name)| {
            format!("crates/{own}: has `{name}` once; take it off the list in tests/house/src/duplicates.rs")
        });
    new.chain(unique).collect()
}

/// The crate that a file belongs to, or the service in the crate of services.
fn owner(file: &str) -> Option<&str> {
    let below = file.strip_prefix("crates/")?;
    match file.strip_prefix(MACHINES).and_then(|below| below.split_once('/')) {
        Some((service, _)) => Some(&below[..MACHINES.len() - "crates/".len() + service.len()]),
        None => below.split('/').next(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found of these types, beside the known ones that are not among them.
    fn found(types: &[PublicType<'_>]) -> Vec<String> {
        findings(types.iter().copied())
            .into_iter()
            .filter(|finding| !finding.contains("take it off"))
            .collect()
    }

    #[test]
    fn a_name_of_two_types_is_found() {
        let found = found(&[("crates/door/src/a.rs", "Gate", 3), ("crates/door/src/b/mod.rs", "Gate", 7)]);
        assert_eq!(
            found,
            ["crates/door/src/a.rs:3: `Gate` is also crates/door/src/b/mod.rs:7; give each its own name"]
        );
    }

    #[test]
    fn other_crates_known_names_and_arguments_of_commands_are_fine() {
        let none: [String; 0] = [];
        assert_eq!(
            found(&[("crates/door/src/a.rs", "Gate", 3), ("crates/worker/src/a.rs", "Gate", 3)]),
            none
        );
        assert_eq!(
            found(&[("crates/engine/src/a.rs", "Options", 3), ("crates/engine/src/b.rs", "Options", 3)]),
            none
        );
        assert_eq!(
            found(&[("crates/cli/src/a.rs", "GetArgs", 3), ("crates/cli/src/b.rs", "GetArgs", 3)]),
            none
        );
    }

    #[test]
    fn each_state_machine_has_its_own_events() {
        let of = |file: &'static str| (file, "Event", 1);
        let (one, other) = ("crates/service/src/a/mod.rs", "crates/service/src/a/b/mod.rs");
        let none: [String; 0] = [];
        assert_eq!(found(&[of(one), of(other), of("crates/core/src/cluster/event.rs")]), none);
        let found = found(&[of(one), of("crates/service/src/a/c.rs")]);
        assert!(found.len() == 1 && found[0].contains("`Event` is also"), "{found:?}");
    }

    #[test]
    fn a_known_name_that_is_unique_again_is_found() {
        let found = findings([("crates/table/src/a.rs", "StartError", 1)]);
        let told =
            "crates/table: has `StartError` once; take it off the list in tests/house/src/duplicates.rs";
        assert!(found.iter().any(|finding| finding == told), "{found:?}");
    }
}
