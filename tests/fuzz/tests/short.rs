//! The short version, without guidance: the seeds are accepted, and mutants of them are survived.

use fuzz::{Mutator, TARGETS, Target};

/// Bytes of mutants that each target is given: a number of runs, for a small seed, and not of seconds.
const BYTES: usize = 24 << 20;
const MUTANTS: usize = 4_000;

fn survives(target: Target) {
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty(), "{} has no seeds", target.name);
    for seed in &seeds {
        assert!((target.parse)(seed), "{} refuses a seed of {} bytes", target.name, seed.len());
    }
    let (mut mutator, mut bytes, mut refused) = (Mutator::new(7), 0, 0);
    for round in 0..MUTANTS {
        let (seed, other) = (&seeds[round % seeds.len()], &seeds[(round * 7 + 1) % seeds.len()]);
        let mutant = mutator.mutant(seed, other);
        // A parser that panics ends the test, which says so with the backtrace.
        refused += usize::from(!(target.parse)(&mutant));
        bytes += mutant.len();
        if bytes > BYTES {
            break;
        }
    }
    assert!(refused > 0, "{} takes whatever it is given", target.name);
}

/// Inputs that a parser once did not survive, below `found/TARGET/`.
#[test]
fn what_was_found_once_is_survived() {
    let found = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("found");
    for target in TARGETS {
        let Ok(inputs) = std::fs::read_dir(found.join(target.name)) else { continue };
        for input in inputs {
            let path = input.expect("the folder is readable").path();
            let bytes = std::fs::read(&path).expect("the file is readable");
            // Accepted or refused, but not with a panic.
            let _ = (target.parse)(&bytes);
        }
    }
    let known = |name: &str| fuzz::target(name).is_some();
    for folder in std::fs::read_dir(&found).into_iter().flatten() {
        let name = folder.expect("the folder is readable").file_name();
        assert!(name.to_str().is_some_and(known), "{name:?} is no target");
    }
}

macro_rules! survive {
    ($($test:ident: $name:literal,)*) => {
        $(
            #[test]
            fn $test() {
                survives(fuzz::target($name).expect("it is in the list"));
            }
        )*

        #[test]
        fn every_target_has_a_test() {
            let tested = [$($name),*];
            for target in TARGETS {
                assert!(tested.contains(&target.name), "{}", target.name);
            }
        }
    };
}

survive! {
    sequence_files: "sequence-file",
    parquet: "parquet",
    csv: "csv",
    json_lines: "json-lines",
    store_files: "store-file",
    journals: "journal",
    metadata: "metadata",
    coordination_state: "coordination-state",
    manifests: "manifest",
    presence: "presence",
    configs: "config",
    worker_json: "worker-json",
    backups: "backup",
}
