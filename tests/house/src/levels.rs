//! Which folder of `core` may know which: arrows go down only.
//!
//! The folders stand on floors like the crates do. A folder knows the folders on lower floors, and none on its own or a
//! higher one; so placement can be read without plans, and the machine of the worker without that of the coordinator.
//! Tests may look everywhere: a test of the cluster may ask a router's table.
//!
//! ```text
//! 5  cluster  worker  routing                   state machines of the three processes
//! 4  placement  plan                            what we want, how we get there
//! 3  node                                       what we see
//! 2  keyspace                                   what is
//! 1  base                                       names, ids, time
//! 0  limits
//! ```

use crate::source::Source;

/// Where the folders are.
const CORE: &str = "crates/core/src/";

/// The floor of each folder of `core`, or file where there is no folder.
const FLOORS: [(&str, u8); 9] = [
    ("limits", 0),
    ("base", 1),
    ("keyspace", 2),
    ("node", 3),
    ("placement", 4),
    ("plan", 4),
    ("cluster", 5),
    ("worker", 5),
    ("routing", 5),
];

/// Every path in a file of `core` that leads up or sideways, and every file without a floor.
pub fn findings(file: &str, source: &Source) -> Vec<String> {
    let Some(below) = file.strip_prefix(CORE).filter(|below| *below != "lib.rs") else { return Vec::new() };
    let room = below.split('/').next().unwrap_or(below).trim_end_matches(".rs");
    let Some(floor) = floor(room) else {
        return vec![format!(
            "{file}: `{room}` has no floor; put it into a folder that has one, or say in tests/house/src/levels.rs \
             where it stands and in {CORE}lib.rs what it is"
        )];
    };
    let module = below.trim_end_matches(".rs").trim_end_matches("/mod");
    let up = source.of_this_crate(module.split('/').count()).filter(|(to, _)| {
        *to != room && FLOORS.iter().any(|(name, floor_to)| name == to && *floor_to >= floor)
    });
    up.map(|(to, line)| {
        format!(
            "{file}:{line}: `{room}` leans on `{to}`, which stands no lower; move what both need down, or take it as \
             an argument"
        )
    })
    .collect()
}

fn floor(room: &str) -> Option<u8> {
    FLOORS.iter().find(|(name, _)| *name == room).map(|(_, floor)| *floor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(file: &str, text: &str) -> Vec<String> {
        findings(&format!("{CORE}{file}"), &Source::parse(file, text).unwrap())
    }

    #[test]
    fn arrows_that_go_up_or_sideways_are_found() {
        for (file, text, what) in [
            ("base/id.rs", "use crate::keyspace::Keyspace;", "`base` leans on `keyspace`"),
            ("keyspace/map/mod.rs", "use crate::{base::id, node::Health};", "`keyspace` leans on `node`"),
            ("node/load.rs", "fn f() { crate::plan::check::map(m) }", "`node` leans on `plan`"),
            ("plan/mod.rs", "use crate::placement;", "`plan` leans on `placement`"),
            ("worker/mod.rs", "struct S(crate::cluster::Cluster);", "`worker` leans on `cluster`"),
            ("limits.rs", "fn f() { assert!(crate::base::time::is()); }", "`limits` leans on `base`"),
            ("node/mod.rs", "use super::worker;", "`node` leans on `worker`"),
            ("node/load.rs", "use super::super::{base::id, cluster};", "`node` leans on `cluster`"),
            ("plan/check/mod.rs", "fn f() { super::super::cluster::x() }", "`plan` leans on `cluster`"),
        ] {
            let found = found(file, text);
            assert_eq!(found.len(), 1, "{file}: {found:?}");
            assert!(found[0].starts_with(&format!("{CORE}{file}:1: {what}")), "{}", found[0]);
        }
        assert!(found("misc/mod.rs", "")[0].contains("`misc` has no floor"));
        assert!(found("misc.rs", "")[0].contains("`misc` has no floor"));
    }

    #[test]
    fn arrows_that_go_down_and_those_of_tests_are_fine() {
        for (file, text) in [
            ("plan/mod.rs", "use crate::node::load::Load; use crate::limits; use crate::plan::check;"),
            ("cluster/mod.rs", "#[cfg(test)] mod tests { use crate::routing::table; }"),
            ("lib.rs", "pub mod base; fn f() { crate::cluster::x() }"),
            ("node/mod.rs", "use super::base; use other::cluster;"),
            ("node/load.rs", "use super::worker;"),
        ] {
            assert_eq!(found(file, text), Vec::<String>::new(), "{file}");
        }
        let wire = Source::parse("a.rs", "use crate::misc;").unwrap();
        assert!(findings("crates/wire/src/base/a.rs", &wire).is_empty(), "only core");
    }
}
