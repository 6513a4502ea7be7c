//! The pages on tables: one after the other, on one cluster.

use super::hundreds;
use super::page::type_page;
use super::shell::Shell;
use std::path::Path;

const TABLES: &str = include_str!("../../../../docs/src/tables.md");
const REFERENCE: &str = include_str!("../../../../docs/src/table-reference.md");
const SHARDS: &str = include_str!("../../../../docs/src/table-shards.md");
const FAILURES: &str = include_str!("../../../../docs/src/table-failures.md");
const BACKUP: &str = include_str!("../../../../docs/src/table-backup.md");
const REDIS: &str = include_str!("../../../../docs/src/tables-redis.md");

/// The part of the first page that has a cluster of its own.
const ONE_PROCESS: &str = "\n### In one process\n";

/// That part, and all others.
fn parts() -> (String, String) {
    let (before, rest) = TABLES.split_once(ONE_PROCESS).unwrap();
    let (part, after) = rest.split_once("\n### ").unwrap();
    (part.to_owned(), format!("{before}\n### {after}"))
}

/// A page with the ports and folders of this machine. The book has ports from 7400, 7600 and 6300 on.
fn here(page: &str, hundreds: u32) -> String {
    let mut page = page.to_owned();
    for (port, at) in [("74", 0), ("76", 1), ("63", 2)] {
        for before in ["127.0.0.1:", "-p "] {
            page = page.replace(&format!("{before}{port}"), &format!("{before}{}", hundreds + at));
        }
    }
    let messages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/proto");
    page.replace("partage coordinator --", &format!("partage coordinator --listen 127.0.0.1:{hundreds}00 --"))
        .replace("partage up --", &format!("partage up --port {hundreds}00 --"))
        // As on a terminal.
        .replace("redis-cli -", "redis-cli --no-raw -")
        .replace("crates/wire/proto", messages.to_str().unwrap())
}

/// Types these pages, and gives the number of their commands.
fn typed(pages: &[&str], hundreds: u32) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let mut shell = Shell::start(dir.path(), &format!("127.0.0.1:{hundreds}00"));
    pages.iter().map(|page| type_page(&mut shell, &here(page, hundreds))).sum()
}

#[test]
fn what_one_process_with_a_table_prints_is_what_is_printed() {
    let (part, _) = parts();
    let count = typed(&[&part], hundreds(0));
    assert!(count >= 5, "only {count} commands were found");
}

#[test]
fn what_the_pages_on_tables_print_is_what_is_printed() {
    let (_, others) = parts();
    let count = typed(&[&others, REFERENCE, SHARDS, FAILURES, BACKUP, REDIS], hundreds(1));
    assert!(count >= 80, "only {count} commands were found");
}
