//! Real files and messages.

use partage_wire::backup::{BackupWriter, Label};
use partage_wire::dataset::manifest::Manifest;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// As the header of the file in `vectors/metadata.json` says.
const STEP_BYTES: usize = 64 << 10;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The files of a folder with that ending, in order; the large ones are too slow to be changed thousands of times.
fn files(folder: &str, ending: &str) -> Vec<Vec<u8>> {
    let folder = root().join(folder);
    let listed = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = listed.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|found| found == ending));
    paths.sort();
    let all = paths.iter().filter_map(|path| std::fs::read(path).ok());
    all.filter(|bytes| bytes.len() <= 64 << 10).collect()
}

fn vector(name: &str) -> Value {
    let path = root().join("vectors").join(name);
    let text = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn unhex(value: &Value) -> Vec<u8> {
    hex::decode(value.as_str().unwrap_or_default()).unwrap_or_default()
}

pub fn sequence_files() -> Vec<Vec<u8>> {
    files("vectors/datasets", "seq")
}

pub fn parquet() -> Vec<Vec<u8>> {
    files("vectors/datasets", "parquet")
}

pub fn csv() -> Vec<Vec<u8>> {
    [
        "key,value\na,1\nb,2\n",
        "key,value\r\n\"a \"\"quoted\"\" one\",\"1,\n2\"\r\nb,\r\n",
        "key,value,more\n\u{e9}\u{fc},x,y\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

pub fn json_lines() -> Vec<Vec<u8>> {
    ["{\"key\":\"a\",\"value\":1}\n", "{\"key\":\"\\u00e9\",\"n\":{\"deep\":[1,2,{}]}}\n{\"key\":\"b\"}"]
        .map(|text| text.as_bytes().to_vec())
        .into()
}

pub fn store_files() -> Vec<Vec<u8>> {
    let vector = vector("store.json");
    vector["files"].as_array().into_iter().flatten().map(|file| unhex(&file["file"])).collect()
}

pub fn metadata() -> Vec<Vec<u8>> {
    let mut file = unhex(&vector("metadata.json")["file"]);
    // Room is taken in steps, and what is not written yet is zero.
    file.resize(file.len().next_multiple_of(STEP_BYTES), 0);
    vec![file]
}

pub fn coordination_state() -> Vec<Vec<u8>> {
    let Value::Object(entries) = vector("stored.json") else { return Vec::new() };
    let mut text = String::new();
    for (key, value) in &entries {
        text.push_str(&format!("{key} {}\n", value.as_str().unwrap_or_default()));
    }
    vec![text.into_bytes()]
}

pub fn manifests() -> Vec<Vec<u8>> {
    use partage_service::dataset::{DatasetName, VersionName};
    let named = (DatasetName::new("packages"), VersionName::new("day-1"));
    let (Ok(dataset), Ok(version)) = named else { return Vec::new() };
    let Ok(partitioner) = "java-bytes".parse() else { return Vec::new() };
    let manifest = Manifest { dataset, version, partitioner, partitions: 20, source: 7, files: Vec::new() };
    vec![manifest.encode()]
}

pub fn presence() -> Vec<Vec<u8>> {
    [
        "nodes/10.0.0.1:9599\n3 settled",
        "datasets/packages/day-1/10.0.0.1:9599\njava-bytes 20 8c1f0e22d9a4b673 0f3a1 73",
        "pins/packages/10.0.0.1:9599\n7 day-1",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

pub fn configs() -> Vec<Vec<u8>> {
    let mut configs = files("examples/config", "toml");
    configs.extend(files("examples/reverse-proxy", "toml"));
    configs
}

pub fn worker_json() -> Vec<Vec<u8>> {
    let token = "0123456789abcdef".repeat(4);
    [
        json!({"id": "n1", "address": "10.0.0.1:8000", "capacity": 1.0, "labels": ["ssd"], "check_path": "/up",
            "callback": "http://10.0.0.1:8000/orders"}),
        json!({"node": "n1", "incarnation": 1, "token": token, "sequence": 1, "sent_at_ms": 5, "applied": 0,
            "whole": true, "leaving": false, "busy": 0.5}),
        json!({"node": "n1", "incarnation": 1, "token": token}),
    ]
    .iter()
    .map(|message| message.to_string().into_bytes())
    .collect()
}

pub fn backups() -> Vec<Vec<u8>> {
    let label = Label { taken_ms: 1_700_000_000_000, by: "mia".to_owned() };
    let (mut writer, mut file) = BackupWriter::begin(&label);
    let document =
        json!({"cluster": {"brake": null}, "keyspaces": [{"name": "ks", "shards": [1, 2, 3]}], "nodes": []});
    file.extend(writer.add(document.to_string().as_bytes()));
    file.extend(writer.end());
    vec![file]
}
