//! Which crate may depend on which: edges go down only.
//!
//! Each crate stands on a floor. It may depend on crates of lower floors, never on one of its own or a higher floor, so
//! that a reader of `core` need not know the coordinator. A few pairs that the floors alone would allow are refused by name,
//! and two that they would refuse are allowed. Tests may also depend on crates of the same floor: a test of the worker may
//! start a router.
//!
//! ```text
//! 6  cli                                        the one binary
//! 5  dataset  table  shuffle  shuffle-flight    services, and a protocol of one; examples/* stand here too
//! 4  coordinator  worker  router  engine  resp  processes, their storage and protocols; shuffle-client, which links none
//! 3  metadata  maps  door  shuffle-wire
//! 2  wire  clock  dialer  log  coordination     coordination depends on the clock: its sessions end by it
//! 1  service                                    decisions of the services
//! 0  core  journal  random  allocator           decisions; files that are only added to; random numbers; memory
//!    tests/*  bench/*                           outside: depend on all, no crate depends on them
//! ```

use std::collections::BTreeMap;

/// A member of the workspace.
#[derive(Debug, Clone)]
pub struct Package {
    /// Its name in Cargo.toml.
    pub name: String,
    /// Its folder, relative to the root of the checkout.
    pub folder: String,
    /// All it depends on, also what is not ours.
    pub dependencies: Vec<Dependency>,
}

/// One line of `[dependencies]`, `[dev-dependencies]` or `[build-dependencies]`.
#[derive(Debug, Clone)]
pub struct Dependency {
    /// The name of the other crate, of this checkout or of a registry.
    pub name: String,
    /// What it is needed for.
    pub kind: Kind,
    /// Its version is `*`, and it is no crate of this checkout.
    pub takes_any_version: bool,
}

/// What a dependency is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Linked into what users run.
    Normal,
    /// Needed by the build script.
    Build,
    /// Needed by tests, benches and examples.
    Dev,
}

/// Floor of tests and benches: above everything.
const OUTSIDE: u8 = 7;

/// The floor of each folder below `crates/`.
const FLOORS: [(&str, u8); 25] = [
    ("core", 0),
    ("service", 1),
    ("random", 0),
    ("allocator", 0),
    ("clock", 2),
    ("journal", 0),
    ("log", 2),
    ("wire", 2),
    ("dialer", 2),
    ("coordination", 2),
    ("door", 3),
    ("shuffle-wire", 3),
    ("metadata", 3),
    ("maps", 3),
    ("coordinator", 4),
    ("worker", 4),
    ("router", 4),
    ("engine", 4),
    ("resp", 4),
    ("shuffle-client", 4),
    ("dataset", 5),
    ("table", 5),
    ("shuffle", 5),
    ("shuffle-flight", 5),
    ("cli", 6),
];

/// Pairs on one floor that are allowed: sessions end by the clock by which leases end; Arrow Flight is a protocol of the service
/// of shuffles, in a crate of its own as Arrow takes long to build.
const ALLOWED: [(&str, &str); 2] = [("coordination", "clock"), ("shuffle-flight", "shuffle")];

/// Crates on which these crates never depend, though the floors would allow it, and the reason.
const REFUSED: [(&str, &[&str], &str); 6] = [
    ("maps", &["coordination"], "maps come from the coordinator over `wire`, never from the backend"),
    ("worker", &["coordination"], "workers hear from the coordinator over `wire`, never from the backend"),
    ("router", &["coordination"], "routers hear from the coordinator over `wire`, never from the backend"),
    ("table", &["coordination", "coordinator"], "services know `worker` and `wire` only"),
    ("shuffle", &["coordination", "coordinator"], "services know `worker` and `wire` only"),
    ("dataset", &["coordinator"], "services know `worker` and `wire` only"),
];

/// The crates that decide, and do nothing else. They need no clock, no randomness, no I/O, no runtime.
pub const PURE: [&str; 2] = ["crates/core", "crates/service"];

/// What they may link.
const PURE_MAY_LINK: [&str; 5] = ["thiserror", "md-5", "xxhash-rust", "triomphe", "bytes"];

/// Every edge that goes up or sideways, every crate without a floor, and what `core` and `service` link beyond their list.
pub fn findings(packages: &[Package]) -> Vec<String> {
    let folders: BTreeMap<&str, &str> =
        packages.iter().map(|p| (p.name.as_str(), p.folder.as_str())).collect();
    let mut found = Vec::new();
    for package in packages {
        let Some(floor) = floor(&package.folder) else {
            found.push(format!(
                "{}: has no floor; say in tests/house/src/graph.rs where it stands, and in ARCHITECTURE.md why",
                package.folder
            ));
            continue;
        };
        for edge in &package.dependencies {
            if let Some(&target) = folders.get(edge.name.as_str()) {
                found.extend(edge_finding(&package.folder, floor, target, edge.kind));
            } else if PURE.contains(&package.folder.as_str())
                && edge.kind != Kind::Dev
                && !PURE_MAY_LINK.contains(&edge.name.as_str())
            {
                found.push(format!(
                    "{}/Cargo.toml: `{}` is not on the list of crates that decide ({}); move what needs it up to wire \
                     or a driver, or show that it is pure and add it in tests/house/src/graph.rs",
                    package.folder,
                    edge.name,
                    PURE_MAY_LINK.join(", ")
                ));
            }
        }
    }
    found
}

/// Every floor of a crate that is gone: the next crate of that name would stand there unasked.
pub fn stale_findings(packages: &[Package]) -> Vec<String> {
    let is_there = |name: &str| packages.iter().any(|package| package.folder == format!("crates/{name}"));
    let stale = FLOORS.iter().filter(|(name, _)| !is_there(name));
    stale
        .map(|(name, _)| format!("crates/{name}: is gone; take its floor away in tests/house/src/graph.rs"))
        .collect()
}

fn floor(folder: &str) -> Option<u8> {
    match folder.split_once('/') {
        Some(("crates", name)) => FLOORS.iter().find(|(n, _)| *n == name).map(|(_, floor)| *floor),
        Some(("examples", _)) => Some(5),
        Some(("tests" | "bench", _)) => Some(OUTSIDE),
        _ => (folder == "bench").then_some(OUTSIDE),
    }
}

fn edge_finding(from: &str, floor_from: u8, to: &str, kind: Kind) -> Option<String> {
    let floor_to = floor(to)?;
    let (name_from, name_to) = (short(from), short(to));
    let why = REFUSED.iter().find(|(f, who, _)| *f == name_from && who.contains(&name_to)).map(|r| r.2);
    let service = from.starts_with("examples/") && ["coordination", "coordinator"].contains(&name_to);
    if kind != Kind::Dev && (why.is_some() || service) {
        let why =
            why.unwrap_or("an example is a user's service: it knows `worker`, `router` and `wire` only");
        return Some(format!("{from}/Cargo.toml: depends on {to}; {why}"));
    }
    let fits = match kind {
        _ if floor_from == OUTSIDE => true,
        Kind::Dev => floor_to <= floor_from,
        Kind::Normal | Kind::Build => floor_to < floor_from || ALLOWED.contains(&(name_from, name_to)),
    };
    (!fits).then(|| {
        format!(
            "{from}/Cargo.toml: depends on {to}, floor {floor_from} on floor {floor_to}; edges go down only: move what \
             both need to a lower crate, or hand it in as an argument"
        )
    })
}

fn short(folder: &str) -> &str {
    folder.rsplit('/').next().unwrap_or(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(folder: &str, dependencies: &[(&str, Kind)]) -> Package {
        let dependency =
            |(n, k): &(&str, Kind)| Dependency { name: (*n).to_owned(), kind: *k, takes_any_version: false };
        let dependencies = dependencies.iter().map(dependency).collect();
        Package { name: format!("partage-{}", short(folder)), folder: folder.to_owned(), dependencies }
    }

    fn of(packages: &[Package]) -> String {
        findings(packages).join("\n")
    }

    fn pair(from: &str, to: &str, kind: Kind) -> String {
        let target = format!("partage-{}", short(to));
        of(&[package(from, &[(&target, kind)]), package(to, &[])])
    }

    #[test]
    fn a_floor_of_a_crate_that_is_gone_is_found() {
        let found = stale_findings(&[package("crates/core", &[])]);
        assert_eq!(found.len(), FLOORS.len() - 1);
        assert!(found.iter().all(|one| !one.starts_with("crates/core:") && one.contains("is gone")));
    }

    #[test]
    fn down_is_fine_and_up_or_sideways_is_not() {
        assert_eq!(pair("crates/wire", "crates/core", Kind::Normal), "");
        assert_eq!(pair("crates/cli", "crates/coordinator", Kind::Normal), "");
        assert!(pair("crates/core", "crates/wire", Kind::Normal).contains("floor 0 on floor 2"));
        assert_eq!(pair("crates/service", "crates/core", Kind::Normal), "");
        assert!(pair("crates/core", "crates/service", Kind::Normal).contains("floor 0 on floor 1"));
        assert!(pair("crates/worker", "crates/router", Kind::Normal).contains("edges go down only"));
        assert!(pair("crates/wire", "crates/core", Kind::Build).is_empty());
        assert!(pair("crates/core", "crates/wire", Kind::Build).contains("floor"));
    }

    #[test]
    fn tests_may_depend_sideways_but_not_up() {
        assert_eq!(pair("crates/worker", "crates/router", Kind::Dev), "");
        assert!(pair("crates/worker", "crates/cli", Kind::Dev).contains("floor 4 on floor 6"));
        assert_eq!(pair("tests/chaos", "crates/cli", Kind::Normal), "");
        assert!(pair("crates/cli", "tests/chaos", Kind::Normal).contains("floor"));
    }

    #[test]
    fn the_backend_is_for_the_coordinator_alone() {
        for who in ["crates/worker", "crates/router", "crates/table", "examples/kv"] {
            assert!(pair(who, "crates/coordination", Kind::Normal).contains("depends on"), "{who}");
        }
        assert_eq!(pair("crates/coordinator", "crates/coordination", Kind::Normal), "");
        assert_eq!(
            pair("crates/dataset", "crates/coordination", Kind::Normal),
            "",
            "leaderless datasets may"
        );
        assert!(pair("examples/kv", "crates/coordinator", Kind::Normal).contains("user's service"));
    }

    #[test]
    fn two_crates_depend_on_a_crate_of_their_floor() {
        assert_eq!(pair("crates/coordination", "crates/clock", Kind::Normal), "");
        assert_eq!(pair("crates/shuffle-flight", "crates/shuffle", Kind::Normal), "");
        assert!(pair("crates/shuffle", "crates/shuffle-flight", Kind::Normal).contains("floor 5 on floor 5"));
        assert!(pair("crates/clock", "crates/coordination", Kind::Normal).contains("floor 2 on floor 2"));
        assert!(pair("crates/log", "crates/wire", Kind::Normal).contains("floor 2 on floor 2"));
    }

    #[test]
    fn what_decides_links_only_its_list() {
        assert_eq!(
            of(&[package("crates/core", &[("thiserror", Kind::Normal), ("proptest", Kind::Dev)])]),
            ""
        );
        assert!(
            of(&[package("crates/core", &[("tokio", Kind::Normal)])]).contains("`tokio` is not on the list")
        );
        assert!(
            of(&[package("crates/service", &[("tokio", Kind::Normal)])])
                .starts_with("crates/service/Cargo.toml")
        );
        assert!(of(&[package("crates/core", &[("cc", Kind::Build)])]).contains("`cc`"));
    }

    #[test]
    fn a_crate_without_a_floor_is_named() {
        assert!(of(&[package("crates/utils", &[])]).starts_with("crates/utils: has no floor"));
    }
}
