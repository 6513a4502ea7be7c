//! How a module with files of its own is laid out: one folder, its own text in `mod.rs`. And that each file belongs to a module.
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

/// Every rust file below a folder `src` that neither a module nor cargo names, so that the compiler never reads it. `sources` are
/// the rust files of the checkout, with their texts.
pub fn dead(sources: &[(String, String)]) -> Vec<String> {
    let mut named = BTreeSet::new();
    for (file, text) in sources {
        let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
        let below = match name {
            "lib.rs" | "main.rs" | "mod.rs" => folder,
            _ => file.trim_end_matches(".rs"),
        };
        let items = syn::parse_file(text).map(|tree| tree.items).unwrap_or_default();
        for module in declared(&items, "") {
            named.insert(format!("{below}/{module}.rs"));
            named.insert(format!("{below}/{module}/mod.rs"));
        }
    }
    let in_src =
        sources.iter().map(|(file, _)| file).filter(|file| file.split('/').any(|part| part == "src"));
    in_src
        .filter(|file| !named.contains(*file) && !is_root(file))
        .map(|file| {
            format!("{file}: no module names it, so nothing compiles it; name it with `mod`, or delete it")
        })
        .collect()
}

/// The modules with a file of their own among the items of a file, as paths below the folder of that file's modules.
fn declared(items: &[syn::Item], before: &str) -> Vec<String> {
    let modules = items.iter().filter_map(|item| match item {
        syn::Item::Mod(module) => Some(module),
        _ => None,
    });
    modules
        .flat_map(|module| match &module.content {
            None => vec![format!("{before}{}", module.ident)],
            Some((_, items)) => declared(items, &format!("{before}{}/", module.ident)),
        })
        .collect()
}

/// What cargo compiles by its place alone.
fn is_root(file: &str) -> bool {
    let Some((_, below)) = file.rsplit_once("src/") else { return false };
    let program = file.rsplit_once("src/bin/").map(|(_, program)| program);
    matches!(below, "lib.rs" | "main.rs")
        || program.is_some_and(|program| !program.contains('/') || program.ends_with("/main.rs"))
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
    fn a_file_that_no_module_names_is_found() {
        let sources = [
            ("crates/a/src/lib.rs", "mod map; mod inner { mod deep; } #[cfg(test)] mod tests;"),
            ("crates/a/src/map/mod.rs", "mod edit;"),
            ("crates/a/src/map/edit.rs", "mod part;"),
            ("crates/a/src/map/edit/part.rs", ""),
            ("crates/a/src/inner/deep.rs", ""),
            ("crates/a/src/tests.rs", ""),
            ("crates/a/src/bin/one.rs", ""),
            ("crates/a/src/bin/two/main.rs", ""),
            ("crates/a/tests/b.rs", ""),
            ("crates/a/src/map/diff.rs", "fn never_compiled() {}"),
            ("crates/a/src/old/mod.rs", ""),
        ];
        let sources = sources.map(|(file, text)| (file.to_owned(), text.to_owned()));
        let found = dead(&sources);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("crates/a/src/map/diff.rs: no module names it"), "{}", found[0]);
        assert!(found[1].starts_with("crates/a/src/old/mod.rs: "), "{}", found[1]);
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
