//! What is read of text, and what every damage comes to. Files that other tools wrote are in `tests/golden.rs`.

use std::io::Write;

use proptest::prelude::*;

use super::*;

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn read(file: &str, bytes: &[u8], options: &Options) -> Result<Pairs, FormatError> {
    let mut records = records(file, std::io::Cursor::new(bytes.to_vec()), options)?;
    let mut pairs = Vec::new();
    while let Some((key, value)) = records.next()? {
        pairs.push((key.to_vec(), value.to_vec()));
    }
    Ok(pairs)
}

fn text(file: &str, bytes: impl AsRef<[u8]>, options: &Options) -> Vec<(String, String)> {
    let pairs = read(file, bytes.as_ref(), options).unwrap();
    let utf8 = |bytes| String::from_utf8(bytes).unwrap();
    pairs.into_iter().map(|(key, value)| (utf8(key), utf8(value))).collect()
}

fn error(file: &str, bytes: impl AsRef<[u8]>, options: &Options) -> String {
    read(file, bytes.as_ref(), options).unwrap_err().to_string()
}

fn columns(key: &str, values: &[&str]) -> Options {
    let values = values.iter().map(|name| (*name).to_owned()).collect();
    let columns = Columns { key: vec![key.to_owned()], values, ..Columns::default() };
    Options { columns, ..Options::default() }
}

fn pairs<const N: usize>(pairs: [(&str, &str); N]) -> Vec<(String, String)> {
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}

#[test]
fn csv_gives_columns_or_rows() {
    let csv = "\u{feff}id,name,n\r\na,\"x, \"\"y\"\"\",1\r\n\nb,,2";
    assert_eq!(text("f.csv", csv, &columns("id", &["name"])), pairs([("a", "x, \"y\""), ("b", "")]));
    assert_eq!(
        text("f.csv", csv, &columns("n", &[])),
        pairs([("1", r#"{"id":"a","name":"x, \"y\"","n":"1"}"#), ("2", r#"{"id":"b","name":"","n":"2"}"#)])
    );
    assert_eq!(
        text("f.csv", csv, &columns("id", &["n", "id"])),
        pairs([("a", r#"{"n":"1","id":"a"}"#), ("b", r#"{"n":"2","id":"b"}"#)])
    );
}

#[test]
fn tsv_has_no_quotes_and_may_have_no_header() {
    let mut options = columns("2", &["1"]);
    options.columns.header = false;
    assert_eq!(text("f.tsv", "\"a\tb\nc\td\"", &options), pairs([("b", "\"a"), ("d\"", "c")]));
}

#[test]
fn json_lines_keep_what_stands_in_them() {
    let lines = "{\"k\": 1, \"v\": \"\\u00e9\", \"o\": {\"x\": [1.50, 2]}}\r\n\n {\"o\":null,\"v\":12345678901234567890.0,\"k\":\"z\"}";
    assert_eq!(
        text("f.jsonl", lines, &columns("k", &["v"])),
        pairs([("1", "é"), ("z", "12345678901234567890.0")])
    );
    assert_eq!(
        text("f.jsonl", lines, &columns("k", &["o"])),
        pairs([("1", r#"{"x": [1.50, 2]}"#), ("z", "")])
    );
    assert_eq!(
        text("f.jsonl", lines, &columns("k", &["k", "o"])),
        pairs([("1", r#"{"k":1,"o":{"x": [1.50, 2]}}"#), ("z", r#"{"k":"z","o":null}"#)])
    );
    let whole = text("f.jsonl", lines, &columns("k", &[]));
    assert_eq!(whole[1].1, lines.lines().last().unwrap());
    assert_eq!(text("f.jsonl", r#"{"k":"1","k":"2"}"#, &columns("k", &["k"])), pairs([("2", "2")]));
}

#[test]
fn text_is_uncompressed_by_what_it_is() {
    let csv = b"k,v\na,1\n";
    let options = columns("k", &["v"]);
    let expected = pairs([("a", "1")]);
    assert_eq!(text("f.csv.gz", gzip(csv), &options), expected);
    assert_eq!(text("f.csv", gzip(csv), &options), expected);
    let two = [gzip(b"k,v\n"), gzip(b"a,1\n")].concat();
    assert_eq!(text("f.csv.gz", two, &options), expected);
    let zstd = zstd::encode_all(&csv[..], 1).unwrap();
    assert_eq!(text("f.csv.zst", &zstd, &options), expected);
    assert_eq!(text("f.csv", "", &options), []);
    assert_eq!(text("f.csv.gz", "", &options), []);

    assert_eq!(
        error("f.csv.gz", csv, &options),
        "f.csv.gz: offset 0: the name ends in .gz, but the file is not gzip; name it for what it is"
    );
    let cut_off = error("f.csv.zst", &zstd[..zstd.len() - 3], &options);
    assert!(cut_off.contains("the file ends within the zstd stream: cut off; write it again"), "{cut_off}");
    let mut damaged = gzip(csv);
    let at = damaged.len() - 6;
    damaged[at] ^= 1;
    assert!(error("f.csv.gz", damaged, &options).contains("the gzip stream: "));
}

#[test]
fn what_is_missing_is_named_with_its_place() {
    let csv = "k,v\na,1\nb\n";
    let cases = [
        ("f.csv", csv, columns("k", &["w"]), "f.csv: line 1: no column \"w\"; there are k, v"),
        (
            "f.csv",
            csv,
            columns("k", &["v"]),
            "f.csv: line 3: not a CSV file: 1 fields where the first row has 2",
        ),
        ("f.csv", csv, Options::default(), "f.csv: offset 0: the dataset has no key column; name one"),
        (
            "f.jsonl",
            "{\"k\":1}\n{}",
            columns("k", &[]),
            "f.jsonl: line 2: no \"k\" in this row; every row must have it",
        ),
        (
            "f.jsonl",
            "{\"k\":null}",
            columns("k", &[]),
            "f.jsonl: line 1: the key, \"k\", is null; a key is text, a number, a truth value or bytes",
        ),
        (
            "f.csv",
            "k,v\na,1\n,2",
            columns("k", &["v"]),
            "f.csv: line 3: the key, \"k\", is empty; a key is text, a number, a truth value or bytes",
        ),
        (
            "f.json",
            "[{\"k\":1},\n{\"k\":2}]",
            columns("k", &[]),
            "f.json: line 1: the file is one JSON list, but each line must be one object: `jq -c '.[]'` writes each element \
             of it on a line",
        ),
        (
            "f.jsonl",
            "{\"k\":1} 2",
            columns("k", &[]),
            "f.jsonl: line 1: not JSON Lines: trailing characters at line 1 column 9; each line is one object",
        ),
        (
            "part-0",
            csv,
            Options::default(),
            "part-0: offset 0: neither the beginning of the file nor its name says what it is; give the dataset a \
             format: sequencefile, csv, tsv, jsonl, parquet",
        ),
        (
            "part-0",
            csv,
            Options { format: Some(Format::SequenceFile), ..Options::default() },
            "part-0: offset 0: not a Hadoop SequenceFile; check the dataset's format, or take the file out",
        ),
        (
            "part-0",
            "SEQ\x06",
            Options { format: Some(Format::Csv), ..columns("k", &[]) },
            "part-0: offset 0: not a CSV file; check the dataset's format, or take the file out",
        ),
    ];
    for (file, content, options, expected) in cases {
        assert_eq!(error(file, content, &options), expected);
    }
}

/// As much as it likes, of the same.
struct Endless(&'static [u8], usize);

impl Read for Endless {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        for byte in into.iter_mut() {
            *byte = self.0[self.1.min(self.0.len() - 1)];
            self.1 += 1;
        }
        Ok(into.len())
    }
}

#[test]
fn a_row_without_an_end_does_not_fill_the_memory() {
    for (file, begin, line) in [("f.csv", &b"k,v\n\"a"[..], 2), ("f.jsonl", b"{\"a", 1)] {
        let failure = records(file, Endless(begin, 0), &columns("k", &[]))
            .and_then(|mut records| records.next().map(|_| ()))
            .unwrap_err();
        assert_eq!(failure.place, Place::Line(line), "{failure}");
        assert!(matches!(failure.reason, Reason::TooLong { .. }), "{failure}");
    }
}

#[test]
fn an_error_of_the_source_is_told_from_one_of_the_file() {
    struct Refuses;
    impl Read for Refuses {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("403"))
        }
    }
    let csv = gzip(&b"k,v\na,1\n".repeat(10_000));
    for cut in [0, 100] {
        let bytes = std::io::Cursor::new(csv[..cut].to_vec()).chain(Refuses);
        let failure = records("f.csv.gz", bytes, &columns("k", &[])).map(|mut records| {
            loop {
                match records.next() {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("it ends"),
                    Err(failure) => break failure,
                }
            }
        });
        let failure = failure.unwrap_or_else(|failure| failure);
        assert!(matches!(&failure.reason, Reason::Read(error) if error.to_string() == "403"), "{failure}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn csv_comes_back(rows in prop::collection::vec((".{1,9}", ".{0,20}"), 0..20), packed in 0..3) {
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(["v", "k"]).unwrap();
        for (key, value) in &rows {
            writer.write_record([value, key]).unwrap();
        }
        let csv = writer.into_inner().unwrap();
        let packed = match packed {
            0 => csv,
            1 => gzip(&csv),
            _ => zstd::encode_all(&csv[..], 1).unwrap(),
        };
        prop_assert_eq!(text("f.csv", packed, &columns("k", &["v"])), rows);
    }

    #[test]
    fn json_lines_come_back(rows in prop::collection::vec((".{0,9}", ".{0,20}"), 0..20)) {
        let line = |(key, value): &(String, String)| serde_json::json!({"k": key, "v": value, "w": [key]}).to_string() + "\n";
        let lines: String = rows.iter().map(line).collect();
        prop_assert_eq!(text("f.jsonl", lines, &columns("k", &["v"])), rows);
    }

    #[test]
    fn whatever_there_is_comes_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..400), which in 0..5usize) {
        let options = Options { format: Some(Format::ALL[which]), ..columns("1", &[]) };
        if let Ok(found) = read("f", &bytes, &options) {
            prop_assert!(found.len() <= bytes.len());
        }
    }
}

#[test]
fn s19_a_quoted_field_that_the_file_ends_in_is_cut_off() {
    let options = columns("k", &["v"]);
    for whole in [
        "k,v\na,1\nb,\"2\"",
        "k,v\na,1\nb,\"2\"\n",
        "k,v\na,1\nb,2",
        "k,v\na,1\nb,2\r\n",
        "k,v\na,1\nb,\"2\"\r\n\n",
    ] {
        assert_eq!(text("f.csv", whole, &options), pairs([("a", "1"), ("b", "2")]), "{whole:?}");
    }
    assert_eq!(text("f.csv", "k,v\na,\"1\n\"", &options), pairs([("a", "1\n")]));
    for cut in ["k,v\na,1\nb,\"2", "k,v\na,1\nb,\"2\n", "k,v\na,1\nb,\"2\n\"\"", "k,v\na,1\nb,\""] {
        let told = error("f.csv", cut, &options);
        assert_eq!(
            told, "f.csv: line 3: the file ends within a quoted field: cut off; write it again",
            "{cut:?}"
        );
    }
    assert!(error("f.csv", "\"k", &options).contains("line 1: the file ends within a quoted field"));
    // A quote within a field that has not begun with one is as it stands.
    assert_eq!(text("f.csv", "k,v\na,1\"", &options), pairs([("a", "1\"")]));
    assert_eq!(text("f.tsv", "k\tv\na\t\"1", &options), pairs([("a", "\"1")]));
}
