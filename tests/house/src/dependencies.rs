//! What may be linked into Partage: which licences, from where, and which crates never.

use crate::graph::Package;
use spdx::{Expression, ParseMode};

/// A crate of the dependency tree.
#[derive(Debug, Clone, Default)]
pub struct Linked {
    /// The crate's name, by which rules refuse or allow it.
    pub name: String,
    /// The version that Cargo has chosen, for messages.
    pub version: String,
    /// Its licences, as an SPDX expression.
    pub licence: Option<String>,
    /// The registry or repository that it comes from; none for a crate of this checkout.
    pub source: Option<String>,
}

/// The licences seen in the tree. Another one is a decision, not an accident: weigh it, then add it here.
const LICENCES: [&str; 10] = [
    "Apache-2.0",
    "BSD-3-Clause",
    "BSL-1.0",
    // A licence like BSD, of libbz2-rs-sys alone.
    "bzip2-1.0.6",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// Licences of one crate alone.
const LICENCES_OF: [(&str, &str); 2] = [
    // libFuzzer's; it is not in what users are given.
    ("libfuzzer-sys", "NCSA"),
    // MIT without its condition: not even the notice must be kept. A part of lsm-tree.
    ("varint-rs", "0BSD"),
];

/// The registry that Cargo uses by default: a git dependency can vanish or change.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Crates that are never linked, and why.
const REFUSED: [(&str, &str); 5] = [
    ("openssl", "one TLS stack: rustls"),
    ("openssl-sys", "one TLS stack: rustls; no C library to install"),
    ("native-tls", "one TLS stack: rustls"),
    ("async-std", "one runtime: tokio"),
    ("smol", "one runtime: tokio"),
];

/// What of the tree is not as it must be.
pub fn findings(linked: &[Linked]) -> Vec<String> {
    linked.iter().filter_map(finding).collect()
}

fn finding(one: &Linked) -> Option<String> {
    let Linked { name, version, .. } = one;
    if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| refused == name) {
        return Some(format!(
            "{name} {version}: is never linked ({why}); find what needs it with `cargo tree -i {name}`"
        ));
    }
    if let Some(source) = one.source.as_ref().filter(|source| *source != REGISTRY) {
        return Some(format!("{name} {version}: comes from {source}; take it from crates.io"));
    }
    let told = one.licence.as_deref().unwrap_or_default();
    let allowed =
        |licence: &str| LICENCES.contains(&licence) || LICENCES_OF.contains(&(name.as_str(), licence));
    // `Apache-2.0/MIT` is how older crates write `OR`.
    let is_allowed = Expression::parse_mode(told, ParseMode::LAX).is_ok_and(|expression| {
        expression.evaluate(|needed| needed.license.id().is_some_and(|id| allowed(id.name)))
    });
    (!is_allowed).then(|| {
        format!(
            "{name} {version}: licence {told:?} is not among the allowed ones; weigh it, and add it in \
             tests/house/src/dependencies.rs, or use another crate"
        )
    })
}

/// Every crate that has a licence for itself alone and is linked no more.
pub fn stale_findings(linked: &[Linked]) -> Vec<String> {
    let stale = LICENCES_OF.iter().filter(|(name, _)| !linked.iter().any(|one| one.name == *name));
    stale
        .map(|(name, licence)| {
            format!("{name}: is not linked any more; take {licence} off LICENCES_OF in tests/house/src/dependencies.rs")
        })
        .collect()
}

/// Members of the workspace that take any version of a crate: an upgrade could come in unseen.
pub fn wildcard_findings(packages: &[Package]) -> Vec<String> {
    let each =
        packages.iter().flat_map(|package| package.dependencies.iter().map(move |edge| (package, edge)));
    each.filter(|(_, edge)| edge.takes_any_version)
        .map(|(package, edge)| {
            format!("{}/Cargo.toml: `{}` has no version; give one", package.folder, edge.name)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linked(name: &str, licence: &str) -> Linked {
        let (name, licence) = (name.to_owned(), Some(licence.to_owned()));
        Linked { name, version: "1.0.0".to_owned(), licence, source: Some(REGISTRY.to_owned()) }
    }

    fn is_refused(one: Linked) -> bool {
        !findings(&[one]).is_empty()
    }

    #[test]
    fn one_allowed_choice_is_enough_and_all_parts_are_needed() {
        for good in ["MIT", "MIT OR GPL-3.0-only", "Apache-2.0/MIT", "(MIT OR GPL-3.0-only) AND Unicode-3.0"]
        {
            assert!(!is_refused(linked("a", good)), "{good}");
        }
        for bad in ["", "GPL-3.0-only", "MIT AND GPL-3.0-only", "AGPL-3.0-or-later", "what I like", "NCSA"] {
            assert!(is_refused(linked("a", bad)), "{bad}");
        }
        assert!(!is_refused(linked("libfuzzer-sys", "(MIT OR Apache-2.0) AND NCSA")));
        assert!(is_refused(Linked { licence: None, ..linked("a", "MIT") }));
    }

    #[test]
    fn a_licence_for_a_crate_that_is_gone_is_found() {
        let found = stale_findings(&[linked("varint-rs", "0BSD")]);
        assert!(found.len() == LICENCES_OF.len() - 1 && found[0].contains("libfuzzer-sys"), "{found:?}");
    }

    #[test]
    fn refused_crates_and_other_sources_are_named() {
        assert!(findings(&[linked("openssl-sys", "MIT")])[0].contains("rustls"));
        let source = Some("git+https://example.com/a".to_owned());
        assert!(findings(&[Linked { source, ..linked("a", "MIT") }])[0].contains("example.com"));
        assert!(!is_refused(Linked { source: None, ..linked("ours", "MIT OR Apache-2.0") }));
    }
}
