//! How a module with files of its own is laid out: one folder, its own text in `mod.rs`.
//!
//! So a module is one entry in the folder above it, with or without files of its own, and the modules that tests share
//! look like all others: `tests/name.rs` would be a test by itself. What cargo builds by itself (`tests/name.rs`,
//! `src/bin/name.rs`) is no module, and may have a folder beside it.

use std::collections::BTreeSet;

/// Folders of a package in which each file is built by itself.
const TARGETS: [&str; 4] = ["tests", "benches", "examples", "src/bin"];

/// Every module among the files of the checkout whose text stands beside its folder, not in it.
pub fn findings(files: &[String]) -> Vec<String> {
    let packages: BTreeSet<&str> = files.iter().filter_map(|file| folder_of(file, "Cargo.toml")).collect();
    let folders: BTreeSet<&str> =
        files.iter().filter(|file| file.ends_with(".rs")).flat_map(|file| folders_above(file)).collect();
    let is_target = |file: &str| {
        let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
        TARGETS.iter().any(|t| folder_of(folder, t).is_some_and(|package| packages.contains(package)))
    };
    let modules = files.iter().filter_map(|file| Some((file, file.strip_suffix(".rs")?)));
    modules
        .filter(|(file, module)| folders.contains(module) && !is_target(file))
        .map(|(file, module)| {
            format!(
                "{file}: a module that stands beside its folder; git mv it to {module}/mod.rs, where its own files are"
            )
        })
        .collect()
}

/// The folder that has `name` in it: the root is "".
fn folder_of<'a>(path: &'a str, name: &str) -> Option<&'a str> {
    let folder = path.strip_suffix(name)?;
    if folder.is_empty() { Some(folder) } else { folder.strip_suffix('/') }
}

/// `a/b` and `a` for `a/b/c.rs`.
fn folders_above(file: &str) -> impl Iterator<Item = &str> {
    file.match_indices('/').map(|(end, _)| &file[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[&str]) -> Vec<String> {
        findings(&files.iter().map(|f| (*f).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_module_beside_its_folder_is_found() {
        for deep in ["crates/a/src/map/diff.rs", "crates/a/src/map/edit/tests.rs"] {
            let found = found(&["crates/a/Cargo.toml", "crates/a/src/map.rs", deep]);
            assert_eq!(found.len(), 1, "{deep}: {found:?}");
            assert!(found[0].starts_with("crates/a/src/map.rs: "), "{}", found[0]);
            assert!(
                found[0].contains("git mv it to crates/a/src/map/mod.rs"),
                "says the way out: {}",
                found[0]
            );
        }
        assert_eq!(
            found(&["crates/a/src/tests.rs", "crates/a/src/tests/b.rs"]).len(),
            1,
            "no target: a module"
        );
        assert_eq!(
            found(&["crates/a/tests/b/c.rs", "crates/a/tests/b/c/d.rs", "crates/a/Cargo.toml"]).len(),
            1
        );
    }

    #[test]
    fn folders_of_modules_and_what_cargo_builds_are_fine() {
        let none: [String; 0] = [];
        assert_eq!(found(&["crates/a/src/map/mod.rs", "crates/a/src/map/diff.rs"]), none);
        assert_eq!(found(&["crates/a/src/page.rs", "crates/a/src/page/page.css"]), none);
        for target in ["tests/b", "benches/b", "examples/b", "src/bin/b"] {
            let (root, part) = (format!("a/{target}.rs"), format!("a/{target}/c.rs"));
            assert_eq!(found(&["a/Cargo.toml", &root, &part]), none);
        }
    }
}
