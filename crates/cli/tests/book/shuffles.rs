//! The pages on shuffles: what one process is enough for, and a pool of processes.

use super::hundreds;
use super::page::{PYTHON, type_page};
use super::process::tool;
use super::shell::Shell;
use parquet::data_type::{DoubleType, Int64Type};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

const SHUFFLES: &str = include_str!("../../../../docs/src/shuffles.md");
const FLIGHT: &str = include_str!("../../../../docs/src/shuffles-flight.md");

/// The part of the page that has a cluster of its own.
const ONE_PROCESS: &str = "\n## In one process\n";

/// How a page has the script of the example.
const SCRIPT: &str = "python3 examples/shuffle-pyarrow/shuffle.py";

/// The part about one process, and the rest of the page.
fn parts() -> (String, String) {
    let (before, rest) = SHUFFLES.split_once(ONE_PROCESS).unwrap();
    let (part, after) = rest.split_once("\n## ").unwrap();
    (part.to_owned(), format!("{before}\n## {after}"))
}

/// The file that a reader of the pages has: orders, some of them at the same price.
fn write_orders(file: &Path) {
    let schema = parse_message_type("message orders { required int64 id; required double price; }").unwrap();
    let file = File::create(file).unwrap();
    let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::default()).unwrap();
    let ids: Vec<i64> = (0..1_000).collect();
    let prices: Vec<f64> = ids.iter().map(|id| (id * 7 % 300) as f64 / 4.0).collect();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int64Type>().write_batch(&ids, None, None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<DoubleType>().write_batch(&prices, None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
}

/// Where the nodes of a pool are, with that before each address.
fn nodes(hundred: u32, before: &str, between: &str) -> String {
    (0..3).map(|node| format!("{before}127.0.0.1:{hundred}0{node}")).collect::<Vec<_>>().join(between)
}

/// A page with the ports and programs of this machine. The book has the coordinator and what belongs to `up` at ports from 7400
/// on, and nodes of shuffles at ports from 7700 on.
fn here(page: &str, coordinator: u32, pool: u32) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = tool(PYTHON);
    let script = format!(
        "{} {}/examples/shuffle-pyarrow/shuffle.py {}",
        python.display(),
        root.display(),
        nodes(pool, "grpc://", " ")
    );
    page.replace("127.0.0.1:74", &format!("127.0.0.1:{coordinator}"))
        .replace("127.0.0.1:77", &format!("127.0.0.1:{pool}"))
        .replace(
            "partage coordinator --",
            &format!("partage coordinator --listen 127.0.0.1:{coordinator}00 --"),
        )
        .replace("partage up --", &format!("partage up --port {coordinator}00 --"))
        .replace(SCRIPT, &script)
        // `./test setup` has installed it.
        .replace("pip install pyarrow", "true")
}

/// Types these pages, and gives the number of their commands.
fn typed(pages: &[&str], coordinator: u32, pool: u32) -> usize {
    let dir = tempfile::tempdir().unwrap();
    write_orders(&dir.path().join("orders.parquet"));
    let mut shell = Shell::start(dir.path(), &format!("127.0.0.1:{coordinator}00"));
    // The commands of the book ask the nodes at the usual ports by themselves. No folder of compiled files in the checkout.
    let nodes = nodes(pool, "", ",");
    shell.types(&format!("export PARTAGE_SHUFFLE_NODE={nodes} PYTHONDONTWRITEBYTECODE=1"), "");
    pages.iter().map(|page| type_page(&mut shell, &here(page, coordinator, pool))).sum()
}

#[test]
fn what_one_process_with_shuffles_prints_is_what_is_printed() {
    let (part, _) = parts();
    assert!(FLIGHT.contains(SCRIPT));
    let count = typed(&[&part, FLIGHT], hundreds(2), hundreds(2) + 3);
    let least = if tool(PYTHON).exists() { 15 } else { 13 };
    assert!(count >= least, "only {count} commands were found");
}

#[test]
fn what_the_page_on_a_pool_of_shuffles_prints_is_what_is_printed() {
    let (_, others) = parts();
    // `up` in the test beside this one takes no ports of these hundreds.
    let count = typed(&[&others], hundreds(2) + 1, hundreds(2) + 2);
    assert!(count >= 15, "only {count} commands were found");
}
