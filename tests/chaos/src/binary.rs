//! The binaries under test.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// How the variables begin by which Cargo tells a program about the package that it is of.
const TOLD: [&str; 5] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_EXE_", "CARGO_PRIMARY_", "OUT_DIR"];

/// A binary of the workspace by its name, `partage` or `chaos-node`, built now if it is older than its sources.
///
/// Cargo tells its tests the paths of a few binaries only, so it is asked: for two tests of all the workspace's, which it builds
/// these binaries for. Asked so, it finds what `cargo test --workspace` has built; asked for the binaries of two packages it
/// would choose other features, and build every dependency a second time. As `backends` is in the workspace, `partage` knows
/// all coordination backends.
pub fn binary(name: &str) -> PathBuf {
    static BUILT: OnceLock<String> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let mut cargo = Command::new(env!("CARGO"));
        // What Cargo tells this test of its package is not for the build scripts of others, some of which watch it.
        let told = std::env::vars_os().filter(|(name, _)| {
            let name = name.to_string_lossy();
            TOLD.iter().any(|begin| name.starts_with(begin))
        });
        told.for_each(|(name, _)| drop(cargo.env_remove(name)));
        let built = cargo
            .args(["test", "--quiet", "--workspace", "--no-run", "--test", "usage", "--test", "callbacks"])
            .args(["--message-format", "json-render-diagnostics"])
            .args((!cfg!(debug_assertions)).then_some("--release"))
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        assert!(built.status.success(), "the binaries cannot be built");
        String::from_utf8(built.stdout).unwrap()
    });
    let executable = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        (message["target"]["name"] == name && message["target"]["kind"][0] == "bin").then_some(())?;
        Some(PathBuf::from(message["executable"].as_str()?))
    };
    built.lines().find_map(executable).unwrap_or_else(|| panic!("cargo has built no {name}"))
}
