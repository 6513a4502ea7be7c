//! The short run of the suite: a few seeds, the same bytes twice, and bugs that are planted and found.

use partage_core::planted::Planted;
use sim::run;
use sim::world::{Shape, Verdict};

/// Seeds of the suite. The long run has as many as one likes: see `README.md`.
const SEEDS: u64 = 6;

/// Seeds within which each planted bug is found.
const FOUND_WITHIN: u64 = 40;

#[test]
fn nothing_is_wrong_under_the_faults_of_a_few_seeds() {
    let mut passed = 0;
    for seed in 1..=SEEDS {
        let report = run(seed, Shape::SMALL, None, None);
        match report.verdict {
            Verdict::Passed => passed += 1,
            Verdict::Unknown => {}
            Verdict::Failed(violation) => panic!(
                "seed {seed}: {} at {} us: {}\nagain: cargo run --release -p sim -- --seed {seed} --small",
                violation.invariant, violation.at, violation.text
            ),
        }
        assert!(report.commits > 20, "seed {seed}: something has moved");
    }
    assert!(passed * 2 > SEEDS, "most seeds have really tried something: {passed} of {SEEDS}");
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let [first, again] = [0, 0].map(|_| run(11, Shape::SMALL, None, None));
    assert_eq!((first.hash, first.events), (again.hash, again.events));
    let words = run(11, Shape::SMALL, None, Some(10));
    assert_eq!(words.hash, first.hash, "words change nothing");
    assert_ne!(run(12, Shape::SMALL, None, None).hash, first.hash);
}

fn is_found(bug: Planted) {
    let found = (1..=FOUND_WITHIN).find_map(|seed| match run(seed, Shape::SMALL, Some(bug), None).verdict {
        Verdict::Failed(violation) => Some((seed, violation)),
        Verdict::Passed | Verdict::Unknown => None,
    });
    let (_, violation) = found.unwrap_or_else(|| panic!("{bug:?} is not found within {FOUND_WITHIN} seeds"));
    assert!(!violation.invariant.starts_with('L'), "{bug:?} is found as what it is: {violation:?}");
}

#[test]
fn a_planted_leader_that_writes_while_it_leaves_is_found() {
    is_found(Planted::O2);
}

#[test]
fn a_planted_lease_that_is_too_long_is_found() {
    is_found(Planted::O4);
}

#[test]
fn a_planted_grant_that_does_not_wait_is_found() {
    is_found(Planted::O5);
}

#[test]
fn a_planted_child_that_does_not_wait_for_its_parent_is_found() {
    is_found(Planted::O8);
}
