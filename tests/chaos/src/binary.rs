//! The binaries under test.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// What Cargo tells a test of its package, and some build script watches (that of `ring` does): to be told of another package
/// makes it compile anew, with all that leans on it.
const TOLD: [&str; 8] = [
    "CARGO_MANIFEST_DIR",
    "CARGO_MANIFEST_LINKS",
    "CARGO_PKG_NAME",
    "CARGO_PKG_VERSION_MAJOR",
    "CARGO_PKG_VERSION_MINOR",
    "CARGO_PKG_VERSION_PATCH",
    "CARGO_PKG_VERSION_PRE",
    "OUT_DIR",
];

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
        for name in TOLD {
            cargo.env_remove(name);
        }
        cargo.args(["test", "--quiet", "--workspace", "--no-run", "--test", "usage", "--test", "callbacks"]);
        cargo.args(["--message-format", "json-render-diagnostics"]);
        cargo.args((!cfg!(debug_assertions)).then_some("--release"));
        let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).stderr(Stdio::inherit()).output().unwrap();
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
