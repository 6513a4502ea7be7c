//! Rows as batch jobs write them: bad ones among them, other delimiters and quotes, keys of several columns.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use partage_dataset::build::{Options, REJECTS, build_all};
use partage_dataset::settings::DatasetSettings;
use partage_dataset::source::Source;
use partage_engine::readonly::Reader;
use partage_service::dataset::{DatasetName, VersionName};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

struct Built {
    folder: TempDir,
    told: Result<(), String>,
    rejected: u64,
}

/// Builds version 1 of these files with these settings.
async fn built(settings: &str, files: &[(&str, &[u8])]) -> Built {
    let folder = tempfile::tempdir().unwrap();
    let version = folder.path().join("source/rows/1");
    fs::create_dir_all(&version).unwrap();
    for (name, bytes) in files {
        fs::write(version.join(name), bytes).unwrap();
    }
    let mut options = Options::from(&DatasetSettings::parse("settings", settings.as_bytes()).unwrap());
    options.memory_bytes = 32 << 20;
    let source = Source::open(folder.path().join("source").to_str().unwrap(), &BTreeMap::new()).unwrap();
    let which = (DatasetName::new("rows").unwrap(), VersionName::new("1").unwrap());
    let (out, progress) = (folder.path().join("out"), Arc::default());
    let told = build_all(&source, (&which.0, &which.1), &out, &options, &progress).await;
    let told = told.map(drop).map_err(|error| error.to_string());
    Built { folder, told, rejected: progress.snapshot().rejected }
}

impl Built {
    fn store_files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder.path().join("out/rows/1")).unwrap();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|end| end == "partage"));
        paths.sort();
        paths
    }

    /// All keys and values, and the number of the store file.
    fn entries(&self) -> BTreeMap<String, (usize, String)> {
        self.told.as_ref().unwrap();
        let mut all = BTreeMap::new();
        for (number, path) in self.store_files().iter().enumerate() {
            for pair in Reader::open(path).unwrap().scan(..).unwrap() {
                let (key, value) = pair.unwrap();
                let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
                all.insert(text(key), (number, text(value)));
            }
        }
        all
    }

    fn pairs(&self) -> Vec<(String, String)> {
        self.entries().into_iter().map(|(key, (_, value))| (key, value)).collect()
    }

    fn rejects(&self) -> Vec<serde_json::Value> {
        let list = fs::read_to_string(self.folder.path().join("out/rows/1").join(REJECTS)).unwrap();
        list.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

const CSV: &str = "key = 'k'\nvalues = ['v']\nlayout = 'ordered'\n";

#[tokio::test(flavor = "multi_thread")]
async fn bad_rows_are_left_out_and_listed_up_to_the_stated_number() {
    let one = b"k,v\na,1\nb\nc,3\nd,4,5\n";
    let two =
        b"{\"k\":\"e\",\"v\":5}\n{\"k\":\n[1]\n{\"v\":6}\n{\"k\":null,\"v\":7}\n{\"k\":\"f\",\"v\":8}\n";
    let strict = built(CSV, &[("1.csv", one)]).await;
    let why = strict.told.unwrap_err();
    assert!(why.contains("1.csv: line 3: ") && why.contains("1 fields where"), "{why}");

    let csv = built(&format!("{CSV}max_bad_rows = 2"), &[("1.csv", one)]).await;
    assert_eq!(csv.pairs(), pairs(&[("a", "1"), ("c", "3")]));
    assert_eq!(csv.rejected, 2);
    let rejects = csv.rejects();
    assert_eq!([&rejects[0]["line"], &rejects[1]["line"]], [3, 5]);
    assert!(rejects[0]["file"].as_str().unwrap().ends_with("rows/1/1.csv"), "{rejects:?}");
    assert!(rejects[1]["reason"].as_str().unwrap().contains("3 fields where the first row has 2"));

    let json = built(&format!("{CSV}max_bad_rows = 4"), &[("1.jsonl", two)]).await;
    assert_eq!(json.pairs(), pairs(&[("e", "5"), ("f", "8")]));
    let reasons: Vec<(u64, String)> = json
        .rejects()
        .iter()
        .map(|row| (row["line"].as_u64().unwrap(), row["reason"].as_str().unwrap().to_owned()))
        .collect();
    assert_eq!(reasons.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2, 3, 4, 5]);
    for ((_, reason), told) in reasons.iter().zip(["JSON", "JSON", "no \"k\"", "is null"]) {
        assert!(reason.contains(told), "{reason}");
    }

    let too_many = built(&format!("{CSV}max_bad_rows = 3"), &[("1.jsonl", two)]).await;
    let why = too_many.told.unwrap_err();
    assert!(why.contains("4 rows so far") && why.contains("max_bad_rows = 3"), "{why}");
    assert!(!too_many.folder.path().join("out/rows/1").exists(), "nothing is built");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_of_bad_rows_is_of_each_file() {
    let file = |bad: usize| {
        let row = |number: usize| if number < bad { "x\n".to_owned() } else { format!("k{number},v\n") };
        format!("k,v\n{}", (0..200).map(row).collect::<String>())
    };
    let settings = format!("{CSV}max_bad_rows = '1%'");
    let (two, three) = (file(2), file(3));
    let within = built(&settings, &[("1.csv", two.as_bytes()), ("2.csv", two.as_bytes())]).await;
    assert_eq!((within.pairs().len(), within.rejected), (198, 4));
    let beyond = built(&settings, &[("1.csv", two.as_bytes()), ("2.csv", three.as_bytes())]).await;
    let why = beyond.told.unwrap_err();
    assert!(why.contains("3 of 200 rows") && why.contains("2.csv") && why.contains("1%"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ends_a_file_is_never_a_bad_row() {
    let cut = b"k,v\na,1\nb,\"2\n";
    let why = built(&format!("{CSV}max_bad_rows = '100%'"), &[("1.csv", cut)]).await.told.unwrap_err();
    assert!(why.contains("ends within a quoted field"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn delimiters_and_quotes_are_as_the_settings_say() {
    let european = b"k;v\na;'1;2'\nb;'it''s \"so\"'\n";
    let settings = format!("{CSV}format = 'csv'\ndelimiter = ';'\nquote = \"'\"");
    let read = built(&settings, &[("1.csv", european)]).await;
    assert_eq!(read.pairs(), pairs(&[("a", "1;2"), ("b", "it's \"so\"")]));
    let none = built(&format!("{CSV}format = 'csv'\nquote = ''"), &[("1.csv", b"k,v\na,\"1\nb,2\"\n")]).await;
    assert_eq!(none.pairs(), pairs(&[("a", "\"1"), ("b", "2\"")]));
    let tabs =
        built(&format!("{CSV}format = 'tsv'\nquote = '\"'"), &[("1.tsv", b"k\tv\na\t\"1\t2\"\n")]).await;
    assert_eq!(tabs.pairs(), pairs(&[("a", "1\t2")]));
    let pipes = built(&format!("{CSV}format = 'csv'\ndelimiter = '|'"), &[("1", b"k|v\na|1,2\n")]).await;
    assert_eq!(pipes.pairs(), pairs(&[("a", "1,2")]));
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_several_columns_are_joined_in_every_format() {
    let settings = "key = ['t', 'n']\nvalues = ['v']\nlayout = 'ordered'\n";
    let csv = built(settings, &[("1.csv", b"t,n,v\nb,1,x\na,2,y\na,10,z\n")]).await;
    let expected = pairs(&[("a\0\u{1}10", "z"), ("a\0\u{1}2", "y"), ("b\0\u{1}1", "x")]);
    assert_eq!(csv.pairs(), expected);
    let json = b"{\"t\":\"b\",\"n\":1,\"v\":\"x\"}\n{\"n\":2,\"t\":\"a\",\"v\":\"y\"}\n{\"v\":\"z\",\"t\":\"a\",\"n\":10}\n";
    assert_eq!(built(settings, &[("1.jsonl", json)]).await.pairs(), expected);
    let whole = built("key = ['t', 'n']\nlayout = 'ordered'", &[("1.jsonl", json)]).await;
    assert_eq!(whole.pairs()[2].1, "{\"t\":\"b\",\"n\":1,\"v\":\"x\"}", "the row as it stands");
    let null = built(settings, &[("1.jsonl", b"{\"t\":\"a\",\"n\":null,\"v\":1}\n")]).await.told.unwrap_err();
    assert!(null.contains("the key, \"n\", is null"), "{null}");
}

#[cfg(feature = "parquet")]
#[tokio::test(flavor = "multi_thread")]
async fn parquet_has_times_as_rfc_3339_also_in_keys() {
    let types = include_bytes!("../../../vectors/datasets/types.parquet") as &[u8];
    let settings = "key = ['at', 'k']\nvalues = ['group']\nlayout = 'ordered'\n";
    let read = built(settings, &[("1.parquet", types)]).await;
    let (key, value) = read.pairs().into_iter().next().unwrap();
    assert_eq!(key, "2024-02-29T01:02:03.000Z\0\u{1}1");
    assert_eq!(value, r#"{"a":"x","b":[{"c":1}]}"#);
    let bad =
        built("key = 'nothing'\nmax_bad_rows = '100%'\nlayout = 'ordered'", &[("1.parquet", types)]).await;
    assert!(bad.pairs().is_empty() && bad.rejected > 0);
    assert_eq!(bad.rejects()[0]["row"], 1);
}

/// K2: rows that agree on the column are in one store file, in the order of the rest of their key.
#[tokio::test(flavor = "multi_thread")]
async fn k2_rows_of_one_partition_key_are_in_one_store_file() {
    let mut files = vec![String::from("id,tenant,v\n"); 4];
    for number in 0..400 {
        files[number % 4] += &format!("{:03},tenant-{},{number}\n", number, number % 7);
    }
    let named: Vec<(String, String)> =
        files.into_iter().enumerate().map(|(number, text)| (format!("{number}.csv"), text)).collect();
    let named: Vec<(&str, &[u8])> =
        named.iter().map(|(name, text)| (name.as_str(), text.as_bytes())).collect();
    let settings = "key = 'id'\npartition_by = 'tenant'\nvalues = ['v']\nlayout = 'ordered'\n";
    let built = built(settings, &named).await;
    let entries = built.entries();
    assert_eq!(entries.len(), 400);
    let mut homes: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (key, (file, _)) in &entries {
        let (tenant, id) = key.split_once("\0\u{1}").unwrap();
        assert_eq!(id.len(), 3);
        let home = homes.entry(tenant).or_default();
        if !home.contains(file) {
            home.push(*file);
        }
    }
    assert_eq!(homes.len(), 7);
    assert!(homes.values().all(|files| files.len() == 1), "{homes:?}");
    assert!(homes.values().any(|files| files != &homes["tenant-0"]), "they are not all in one: {homes:?}");
    let manifest = fs::read_to_string(built.folder.path().join("out/rows/1/_manifest.json")).unwrap();
    assert!(manifest.contains("\"partitioner\":\"java-bytes:1/2\""), "{manifest}");
}
