//! What `./test setup` has installed, and programs in Go.

pub use super::process::tool;

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the program in Go in that folder, under that name.
pub fn go_program(folder: &Path, name: &str) -> PathBuf {
    let own = tool("redis/bin/go");
    let go = if own.exists() { own } else { PathBuf::from("go") };
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut build = Command::new(go);
    build.args(["build", "-o"]).arg(&out).arg(".").current_dir(folder).env("GOFLAGS", "-buildvcs=false");
    let built = build.output().expect("./test setup installs it");
    assert!(built.status.success(), "{built:?}");
    out
}
