//! The short version, without guidance: the seeds are accepted, and mutants of them are survived.

use fuzz::{Mutator, TARGETS, Target};
use std::time::{Duration, Instant};

/// Mutants of each target at most, and for how long it is given them. The time decides nothing: who gets fewer is
/// slower.
const MUTANTS: usize = 4_000;
const LONGEST: Duration = Duration::from_secs(6);

fn survives(target: Target) {
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty(), "{} has no seeds", target.name);
    for seed in &seeds {
        assert!((target.parse)(seed), "{} refuses a seed of {} bytes", target.name, seed.len());
    }
    let (mut mutator, begun, mut refused) = (Mutator::new(7), Instant::now(), 0);
    for round in 0..MUTANTS {
        if begun.elapsed() > LONGEST {
            break;
        }
        let (seed, other) = (&seeds[round % seeds.len()], &seeds[(round * 7 + 1) % seeds.len()]);
        // A parser that panics ends the test, which says so with the backtrace.
        refused += usize::from(!(target.parse)(&mutator.mutant(seed, other)));
    }
    assert!(refused > 0, "{} takes whatever it is given", target.name);
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
