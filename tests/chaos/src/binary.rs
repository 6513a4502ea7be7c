//! The binaries under test.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// A binary of the workspace by its name, `partage` or `chaos-node`, built now if it is older than its sources.
///
/// Cargo tells its tests the paths of a few binaries only, so it is asked: for two tests of all the workspace's, which it builds
/// these binaries for. Asked so, it finds what `cargo test --workspace` has built; asked for the binaries of two packages it
/// would choose other features, and build every dependency a second time. As `backends` is in the workspace, `partage` knows
/// all coordination backends.
pub fn binary(name: &str) -> PathBuf {
    static BUILT: OnceLock<String> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let built = Command::new(env!("CARGO"))
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
