//! What a sort refuses before it asks any node, and what it says when there is none.

use crate::files;
use crate::pool::{Said, partage};
use std::path::Path;
use tempfile::TempDir;

/// A sort of that file; nobody listens where it asks.
fn sort(folder: &Path, file: &str, out: &str, arguments: &[&str]) -> Said {
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (file, out) = (path(file), path(out));
    let sort = ["shuffle", "sort", &file, "-o", &out, "--node", "127.0.0.1:9"];
    Said::of(partage(&[&sort[..], arguments].concat()))
}

#[test]
fn each_mistake_is_named_with_the_way_out() {
    let folder = TempDir::new().unwrap();
    let within = folder.path();
    files::write_binary(&within.join("records.bin"), 10);
    files::write_csv(&within.join("rows.csv"), 10);
    files::write_parquet(&within.join("rows.parquet"), 10);
    std::fs::write(within.join("odd.bin"), [0; 1_050]).unwrap();
    std::fs::create_dir(within.join("there")).unwrap();
    std::fs::write(within.join("there/file"), "mine").unwrap();
    let binary = &["--record", "100", "--key", "10", "--partitions", "7"][..];

    let none = sort(within, "records.bin", "out", binary);
    none.refused(3, &["no node of shuffles is reachable", "127.0.0.1:9", "partage shuffle serve", "--node"]);
    let there = sort(within, "records.bin", "there", binary);
    there.refused(4, &["there is there already, and is not empty", "-o"]);
    assert_eq!(std::fs::read_to_string(within.join("there/file")).unwrap(), "mine");
    let file = sort(within, "records.bin", "rows.csv", binary);
    file.refused(4, &["rows.csv is there already, and is no folder"]);
    let zero = sort(within, "records.bin", "out", &["--record", "100", "--key", "10", "--partitions", "0"]);
    zero.refused(2, &["--partitions 0", "--partitions 1"]);
    let odd = sort(within, "odd.bin", "out", binary);
    odd.refused(2, &["odd.bin has 1050 bytes", "10 records of 100 bytes and 50 bytes more", "--record"]);
    for (file, by) in [("rows.csv", "prise"), ("rows.parquet", "prise")] {
        let column = sort(within, file, "out", &["--by", by, "--partitions", "7"]);
        column.refused(2, &[file, "no column \"prise\"", "place", "--by"]);
    }
    let absent = sort(within, "absent.csv", "out", &["--by", "a", "--partitions", "7"]);
    absent.refused(2, &["cannot read", "absent.csv"]);
    let format = sort(within, "there", "out", &["--by", "a", "--partitions", "7"]);
    format.refused(2, &["does not say its format", "--format"]);
    let by = sort(within, "rows.csv", "out", &["--partitions", "7"]);
    by.refused(2, &["by what the rows are sorted", "--by COLUMN"]);
    assert!(!within.join("out").exists());
}
