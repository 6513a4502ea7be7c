//! The checkout keeps the rules of the house. Each finding says where, what, and the way out.

use std::collections::{BTreeMap, BTreeSet};

use house::source::{Source, comment_findings, opening_finding, question_findings};
use house::text::{Page, machine_path_findings, number_findings, numbers};
use house::{commits, dependencies, glossary, graph, levels, metrics, modules, tree};

/// Fails with every finding on a line of its own.
fn none(rule: &str, findings: &[String]) {
    assert!(findings.is_empty(), "{rule}: {} finding(s)\n  {}", findings.len(), findings.join("\n  "));
}

/// The sources of the crates with their facts, without files that only tests see.
fn sources() -> Vec<(String, String, Source)> {
    let read = tree::crate_sources(&tree::root());
    assert!(read.len() > 10, "the sources are found: {}", read.len());
    let parsed: Vec<_> = read
        .into_iter()
        .map(|(file, text)| {
            let source = Source::parse(&file, &text).unwrap_or_else(|e| panic!("{e}"));
            (file, text, source)
        })
        .collect();
    let tests: Vec<String> = parsed.iter().flat_map(|(file, _, source)| source.test_files(file)).collect();
    let for_tests = |file: &str| tests.iter().any(|t| file == t || (t.ends_with('/') && file.starts_with(t)));
    parsed.into_iter().filter(|(file, _, _)| !for_tests(file)).collect()
}

/// Every rust file of the checkout, with its text.
fn rust_files() -> Vec<(String, String)> {
    let root = tree::root();
    let files = tree::files(&root).into_iter().filter(|file| file.ends_with(".rs"));
    files
        .filter_map(|file| Some((tree::text(&root, &file)?, file)))
        .map(|(text, file)| (file, text))
        .collect()
}

#[test]
fn the_crate_graph_points_down() {
    let packages = tree::packages(&tree::root());
    assert!(packages.iter().any(|p| p.folder == "crates/core"), "core is a member: {packages:?}");
    none("crate graph", &graph::findings(&packages));
    none("floors", &graph::stale_findings(&packages));
}

#[test]
fn what_is_linked_has_a_licence_that_was_weighed_and_comes_from_one_registry() {
    let linked = tree::linked(&tree::root());
    assert!(linked.iter().any(|one| one.name == "tokio"), "{} crates", linked.len());
    none("dependencies", &dependencies::findings(&linked));
    none("licences of one crate", &dependencies::stale_findings(&linked));
    none("versions", &dependencies::wildcard_findings(&tree::packages(&tree::root())));
}

#[test]
fn commits_say_their_area_and_are_short() {
    match commits::history(&tree::root()) {
        Ok(history) => none("subjects of commits", &commits::findings(&history)),
        Err(why) => println!("subjects of commits are not checked: {why}"),
    }
}

#[test]
fn no_type_or_module_is_named_by_a_picture() {
    let found: Vec<String> =
        rust_files().iter().flat_map(|(file, text)| glossary::findings(file, text)).collect();
    none("words", &found);
}

#[test]
fn no_two_public_types_of_a_crate_have_one_name() {
    let sources = sources();
    let types = sources.iter().flat_map(|(file, _, source)| {
        source.public_types().map(move |(name, line)| (file.as_str(), name, line))
    });
    none("names of types", &house::duplicates::findings(types));
}

#[test]
fn core_and_service_only_decide() {
    let found: Vec<String> = sources()
        .iter()
        .filter(|(file, ..)| graph::PURE.iter().any(|folder| file.starts_with(&format!("{folder}/src/"))))
        .flat_map(|(file, _, source)| source.core_findings(file))
        .collect();
    none("what decides is pure", &found);
}

#[test]
fn the_folders_of_core_lean_down() {
    let found: Vec<String> =
        sources().iter().flat_map(|(file, _, source)| levels::findings(file, source)).collect();
    none("levels of core", &found);
}

#[test]
fn a_module_with_files_of_its_own_is_one_folder() {
    none("modules", &modules::findings(&tree::files(&tree::root())));
}

#[test]
fn every_file_belongs_to_a_module() {
    let files = rust_files();
    assert!(files.len() > 500, "the files are found: {}", files.len());
    none("dead files", &modules::dead(&files));
}

#[test]
fn forms_live_in_wire() {
    let found: Vec<String> =
        sources().iter().flat_map(|(file, _, source)| source.form_findings(file)).collect();
    none("network and stored forms", &found);
}

#[test]
fn connections_are_opened_by_the_dialer() {
    let found: Vec<String> =
        sources().iter().flat_map(|(file, _, source)| source.dial_findings(file)).collect();
    none("connections past the dialer", &found);
}

#[test]
fn files_and_functions_fit_in_a_head() {
    let found: Vec<String> =
        sources().iter().flat_map(|(file, text, source)| source.size_findings(file, text)).collect();
    none("size", &found);
}

#[test]
fn every_file_says_what_it_is_for() {
    let found: Vec<String> =
        sources().iter().filter_map(|(file, text, _)| opening_finding(file, text)).collect();
    none("openings", &found);
}

#[test]
fn comment_lines_fit_in_a_window() {
    let found: Vec<String> =
        rust_files().iter().flat_map(|(file, text)| comment_findings(file, text)).collect();
    none("comments", &found);
}

#[test]
fn no_doc_comment_is_a_question() {
    let found: Vec<String> =
        sources().iter().flat_map(|(file, text, _)| question_findings(file, text)).collect();
    none("doc comments", &found);
}

#[test]
fn no_text_names_a_path_of_one_machine() {
    let root = tree::root();
    let found: Vec<String> = tree::files(&root)
        .iter()
        .filter_map(|file| tree::text(&root, file).map(|text| machine_path_findings(file, &text)))
        .flatten()
        .collect();
    none("paths", &found);
}

#[test]
fn every_link_in_the_docs_leads_somewhere() {
    let root = tree::root();
    let files = tree::files(&root);
    let pages: BTreeMap<String, Page> = files
        .iter()
        .filter(|f| f.ends_with(".md"))
        .filter_map(|f| tree::text(&root, f).map(|text| (f.clone(), Page::parse(&text))))
        .collect();
    assert!(pages.contains_key("README.md"), "the pages are found");
    let mut found = Vec::new();
    for (file, page) in &pages {
        for (target, anchor) in page.inner_links(file) {
            if !target.is_empty() && !root.join(&target).exists() {
                found.push(format!("{file}: links to `{target}`, which is not there"));
            } else if !anchor.is_empty() && pages.get(&target).is_some_and(|p| !p.has_anchor(&anchor)) {
                found.push(format!(
                    "{file}: links to `{target}#{anchor}`, but no heading there gives that anchor"
                ));
            }
        }
    }
    none("links", &found);
}

#[test]
fn every_file_that_the_architecture_names_is_there() {
    let root = tree::root();
    let page = Page::parse(&tree::text(&root, "ARCHITECTURE.md").expect("the architecture has a page"));
    assert!(page.paths().count() > 30, "the paths are found");
    let folders = ["", "crates", "crates/core/src"];
    let found: Vec<String> = page
        .paths()
        .filter(|path| !folders.iter().any(|folder| root.join(folder).join(path).exists()))
        .map(|path| {
            format!(
                "ARCHITECTURE.md: names `{path}`, which is neither below crates/core/src nor below crates nor the root; \
                 say where that is decided now"
            )
        })
        .collect();
    none("architecture", &found);
}

/// The crates that have metrics, by the word that their names begin with. Those of the door stand behind each of the others.
const METRICS: [(&str, &str); 6] = [
    ("partage_coordinator_", "coordinator"),
    ("partage_router_", "router"),
    ("partage_dataset_", "dataset"),
    ("partage_table_", "table"),
    ("partage_worker_", "worker"),
    ("…_", "door"),
];

/// The page with the metrics.
const MONITORING: &str = "docs/src/monitoring.md";

/// The metrics that the sources of a crate register, by file.
fn registered_by(sources: &[(String, String, Source)], folder: &str) -> Vec<(String, BTreeSet<String>)> {
    let of_crate = sources.iter().filter(|(file, ..)| file.starts_with(folder));
    let registered = of_crate.map(|(file, text, _)| (file.clone(), metrics::registered(text)));
    registered.filter(|(_, names)| !names.is_empty()).collect()
}

#[test]
fn the_metrics_of_the_book_are_those_that_are_registered() {
    let page = tree::text(&tree::root(), MONITORING).expect("the book lists the metrics");
    let sources = sources();
    let mut found = Vec::new();
    for (begin, of) in METRICS {
        let named = metrics::named(&page, begin);
        let files = registered_by(&sources, &format!("crates/{of}/src/"));
        let all: BTreeSet<String> =
            files.iter().flat_map(|(_, names)| names).map(|name| metrics::bare(name)).collect();
        assert!(named.len() > 2 && all.len() > 2, "the metrics of {of} are found: {named:?} {all:?}");
        for (file, names) in &files {
            let silent = names.iter().filter(|name| !named.contains(&metrics::bare(name)));
            found.extend(
                silent.map(|name| format!("{file}: registers `{name}`, which {MONITORING} does not name")),
            );
        }
        // A service of the Rust SDK has the metrics of the door behind the word of the worker.
        let extra = named.iter().filter(|name| !all.contains(*name) && !name.starts_with("door_"));
        found.extend(
            extra.map(|name| {
                format!("{MONITORING}: names the metric `{begin}{name}`, which nobody registers")
            }),
        );
    }
    none("metrics", &found);
}

#[test]
fn every_crate_with_metrics_is_known_to_the_rule_about_them() {
    let sources = sources();
    let registers = sources.iter().filter(|(_, text, _)| text.contains("registry.register"));
    let found: Vec<String> = registers
        .filter(|(file, ..)| !METRICS.iter().any(|(_, of)| file.starts_with(&format!("crates/{of}/src/"))))
        .map(|(file, ..)| format!("{file}: registers metrics; name its crate in METRICS of this file"))
        .collect();
    none("metrics", &found);
}

#[test]
fn every_page_of_the_book_is_in_its_summary() {
    let root = tree::root();
    let summary = tree::text(&root, "docs/src/SUMMARY.md").expect("the book has a summary");
    let listed: Vec<String> =
        Page::parse(&summary).inner_links("docs/src/SUMMARY.md").into_iter().map(|(path, _)| path).collect();
    let found: Vec<String> = tree::files(&root)
        .into_iter()
        .filter(|f| f.starts_with("docs/src/") && f.ends_with(".md") && f != "docs/src/SUMMARY.md")
        .filter(|f| !listed.contains(f))
        .map(|f| format!("{f}: not in docs/src/SUMMARY.md, so no reader finds it; add a line there"))
        .collect();
    none("book", &found);
}

#[test]
fn every_proof_that_the_book_names_is_a_test() {
    let root = tree::root();
    let files = tree::files(&root);
    let sources: Vec<String> =
        files.iter().filter(|f| f.ends_with(".rs")).filter_map(|f| tree::text(&root, f)).collect();
    let page = tree::text(&root, "docs/src/invariants.md").expect("the book lists what holds");
    let page = Page::parse(&page);
    assert!(page.test_names().count() > 10, "the names are found");
    let exists = |name: &str| sources.iter().any(|s| s.contains(&format!("fn {name}(")));
    let found: Vec<String> = page
        .test_names()
        .filter(|name| !exists(name))
        .map(|name| {
            format!("docs/src/invariants.md: names `{name}`, but there is no such test; mend or drop the row")
        })
        .collect();
    none("proofs", &found);
}

#[test]
fn every_number_that_the_code_cites_is_explained_in_the_book() {
    let root = tree::root();
    let page = tree::text(&root, "docs/src/invariants.md").expect("the book lists what holds");
    let explained = numbers(&page).collect();
    let found: Vec<String> = tree::files(&root)
        .into_iter()
        .filter(|file| file.ends_with(".rs") && !file.starts_with("tests/house/"))
        .filter_map(|file| Some((tree::text(&root, &file)?, file)))
        .flat_map(|(source, file)| number_findings(&file, &source, &explained))
        .collect();
    none("numbers", &found);
}
