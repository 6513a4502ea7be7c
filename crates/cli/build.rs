//! How the program is linked.

use std::env::var;

/// The target whose linker is known: rustc brings LLD for it.
const KNOWN_TARGET: &str = "x86_64-unknown-linux-gnu";

/// Functions of the same machine code become one, where rustc's own linker links a release: some 5 % of the program. No code here
/// compares functions by their addresses.
#[expect(clippy::disallowed_methods, reason = "Cargo tells a build script all it knows in its environment")]
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| var(name).is_ok_and(|found| found == value);
    let is_own_linker = var("RUSTC_LINKER").is_err()
        && var("CARGO_ENCODED_RUSTFLAGS").is_ok_and(|flags| !flags.contains("link"));
    if is("TARGET", KNOWN_TARGET) && is("HOST", KNOWN_TARGET) && is("PROFILE", "release") && is_own_linker {
        println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
    }
}
