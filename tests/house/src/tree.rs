//! The files of the checkout, and the members of the workspace.
//!
//! Paths are relative to the root of the checkout and use `/`, so that a finding reads the same on every
//! machine. The list is what lies on disk, not what git tracks: a check also works in an unpacked archive.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::dependencies::Linked;
use crate::graph::{Dependency, Kind, Package};

/// What holds no text of ours. `.git` is a folder, or a file in a second work tree.
const SKIPPED: [&str; 4] = ["target", "node_modules", ".git", "__pycache__"];

/// The root of the checkout that is tested: this crate lies in `tests/house`.
///
/// Asked when the test runs, not when it is built: Cargo may take a test built in one checkout for one of
/// another that shares its target folder, and the path that was built in would be the wrong one.
#[expect(clippy::disallowed_methods, reason = "cargo tells a test by the environment where its crate is")]
pub fn root() -> PathBuf {
    let here =
        std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it for tests; run them by `cargo test`");
    Path::new(&here).ancestors().nth(2).expect("tests/house has two folders above it").to_path_buf()
}

/// Every file below `root`, relative to it, sorted.
pub fn files(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![root.to_path_buf()];
    while let Some(folder) = waiting.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            if SKIPPED.iter().any(|s| *s == name) {
                continue;
            }
            let kind = entry.file_type();
            if kind.as_ref().is_ok_and(|k| k.is_dir()) {
                waiting.push(path);
            } else if kind.is_ok_and(|k| k.is_file())
                && let Ok(below) = path.strip_prefix(root)
            {
                found.push(below.to_string_lossy().replace('\\', "/"));
            }
        }
    }
    found.sort();
    found
}

/// The text of one file, or nothing when it is not UTF-8 (a sample, a picture).
pub fn text(root: &Path, file: &str) -> Option<String> {
    fs::read_to_string(root.join(file)).ok()
}

/// The rust files of the crates that are not only tests: `crates/*/src/**.rs`.
pub fn crate_sources(root: &Path) -> Vec<(String, String)> {
    let sources = files(root).into_iter().filter(|f| f.starts_with("crates/") && f.ends_with(".rs"));
    sources
        .filter(|f| f.split('/').nth(2) == Some("src"))
        .filter_map(|f| text(root, &f).map(|t| (f, t)))
        .collect()
}

/// The members of the workspace, as Cargo sees them. Reads only files that are there: no network.
pub fn packages(root: &Path) -> Vec<Package> {
    let members = metadata(root, &["--no-deps", "--offline"]);
    members.iter().map(|p| package(root, p)).collect()
}

/// Every crate that any feature on any platform links. Cargo fetches what is not there.
pub fn linked(root: &Path) -> Vec<Linked> {
    let word = |v: &serde_json::Value| v.as_str().map(str::to_owned);
    let linked = |package: &serde_json::Value| Linked {
        name: word(&package["name"]).unwrap_or_default(),
        version: word(&package["version"]).unwrap_or_default(),
        licence: word(&package["license"]),
        source: word(&package["source"]),
    };
    metadata(root, &["--locked", "--all-features"]).iter().map(linked).collect()
}

fn metadata(root: &Path, options: &[&str]) -> Vec<serde_json::Value> {
    let out = Command::new("cargo")
        .args(["metadata", "--format-version", "1"])
        .args(options)
        .current_dir(root)
        .output()
        .expect("cargo is on the path: it runs this test");
    assert!(out.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&out.stderr));
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).expect("cargo metadata prints JSON");
    json["packages"].as_array().expect("cargo metadata lists packages").clone()
}

fn package(root: &Path, json: &serde_json::Value) -> Package {
    let word = |v: &serde_json::Value| v.as_str().unwrap_or_default().to_owned();
    let manifest = PathBuf::from(word(&json["manifest_path"]));
    let folder = manifest.parent().unwrap_or(root);
    let dependencies = json["dependencies"].as_array().into_iter().flatten();
    Package {
        name: word(&json["name"]),
        folder: folder.strip_prefix(root).unwrap_or(folder).to_string_lossy().replace('\\', "/"),
        dependencies: dependencies
            .map(|d| Dependency {
                name: word(&d["name"]),
                kind: match d["kind"].as_str() {
                    Some("dev") => Kind::Dev,
                    Some("build") => Kind::Build,
                    _ => Kind::Normal,
                },
                takes_any_version: d["req"] == "*" && d["path"].is_null(),
            })
            .collect(),
    }
}
