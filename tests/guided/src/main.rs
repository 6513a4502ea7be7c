//! The targets of `tests/fuzz`, mutated towards code that was not reached yet: `./test fuzz` builds it with the coverage
//! counters of LLVM, which are in the stable compiler too, and runs it for each target.
//!
//! `FUZZ_TARGET` says which target, and `FUZZ_SEEDS` to which folder its seeds are written before the beginning; all else is
//! an argument of libFuzzer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use std::sync::LazyLock;

/// Of this process.
#[expect(clippy::disallowed_methods, reason = "all arguments are libFuzzer's")]
static TARGET: LazyLock<fuzz::Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let known = || fuzz::TARGETS.map(|target| target.name).join(", ");
    fuzz::target(&name).unwrap_or_else(|| panic!("FUZZ_TARGET is {name:?}, and there are {}", known()))
});

#[expect(clippy::disallowed_methods, reason = "all arguments are libFuzzer's")]
fn write_seeds() {
    let Some(folder) = std::env::var_os("FUZZ_SEEDS").map(PathBuf::from) else { return };
    let written = std::fs::create_dir_all(&folder).and_then(|()| {
        let mut seeds = (TARGET.seeds)().into_iter().enumerate();
        seeds.try_for_each(|(number, seed)| std::fs::write(folder.join(format!("seed-{number}")), seed))
    });
    written.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
}

fuzz_target!(init: write_seeds(), |data: &[u8]| {
    (TARGET.parse)(data);
});
