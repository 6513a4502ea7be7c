//! The targets of `tests/fuzz`, mutated towards code that was not reached yet: `./test fuzz` builds it with the coverage
//! counters of LLVM, which are in the stable compiler too, and runs it for each target.
//!
//! `FUZZ_TARGET` says which target, and `FUZZ_SEEDS` to which folder its seeds are written before the beginning; all else is
//! an argument of libFuzzer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, PoisonError};

/// The target that `FUZZ_TARGET` names.
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

/// What the last panic said. libFuzzer's own hook ends the process with each; but the product catches those of the library that
/// reads Parquet, which gives up damaged files so.
static LAST_PANIC: Mutex<String> = Mutex::new(String::new());

static HOOK: LazyLock<()> = LazyLock::new(|| {
    std::panic::set_hook(Box::new(|panic| {
        *LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner) = panic.to_string();
    }));
});

fuzz_target!(init: write_seeds(), |data: &[u8]| {
    LazyLock::force(&HOOK);
    if std::panic::catch_unwind(|| (TARGET.parse)(data)).is_err() {
        eprintln!("{}", LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner));
        std::process::abort();
    }
});
