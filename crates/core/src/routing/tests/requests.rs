//! One request under every order of events.

use crate::base::time::Millis;
use crate::routing::budget::{Budget, BudgetPolicy};
use crate::routing::retry::{Action, Attempts, Event, LastFailure, Reason, RequestTraits, RetryPolicy};
use proptest::prelude::*;

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => Just(Event::Woke),
        1 => Just(Event::Nobody),
        1 => any::<bool>().prop_map(|good| Event::Answer { good }),
        2 => any::<bool>().prop_map(|hinted| Event::Misdirected { hinted }),
        2 => (0u64..2_000).prop_map(|after_ms| Event::NotReady { after_ms }),
        2 => any::<bool>().prop_map(|another| Event::NotConnected { another }),
        2 => Just(Event::Broken),
        1 => Just(Event::Slow),
        1 => Just(Event::Late),
    ]
}

fn traits_strategy() -> impl Strategy<Value = RequestTraits> {
    any::<[bool; 3]>().prop_map(|[idempotent, hedged, replayable]| RequestTraits {
        idempotent,
        hedged: hedged && idempotent,
        replayable,
    })
}

const EMPTY: BudgetPolicy = BudgetPolicy { percent: 10, capacity: 0, refill_per_s: 0 };

proptest! {
    #[test]
    fn what_may_have_been_done_is_not_done_again(
        traits in traits_strategy(),
        events in prop::collection::vec((events(), 0u64..300), 0..60),
        capacity in 0u64..20,
        tries in 1u32..20,
        seed in any::<u64>(),
    ) {
        let policy = RetryPolicy { tries, ..RetryPolicy::default() };
        let mut budget = Budget::new(BudgetPolicy { capacity, ..EMPTY });
        let (begin, mut now) = (Millis(1_000), Millis(1_000));
        let mut attempts = Attempts::begin(now, &policy, traits, seed);
        let mut over = false;
        let (mut under_way, mut broken_at_last, mut resting) = (1i32, false, false);
        // Tokens taken, tries that take one, and whether the next try is such a one.
        let (mut paid, mut priced, mut is_priced) = (0, 0, false);
        for (event, pause) in events {
            now = now + pause;
            let before = budget.left();
            let action = attempts.step(now, event, &policy, &mut budget);
            paid += before - budget.left();
            if over {
                prop_assert_eq!(action, Action::Listen);
                continue;
            }
            let ended = !matches!(event, Event::Woke | Event::Slow | Event::Late | Event::Nobody);
            if ended && under_way > 0 { under_way -= 1 }
            if event == Event::Nobody && under_way > 0 { under_way -= 1 }
            broken_at_last |= event == Event::Broken && !resting;
            resting = matches!(action, Action::Rest { .. }) || (resting && action == Action::Listen);
            match action {
                Action::Ask | Action::AskHinted => {
                    prop_assert_eq!(under_way, 0, "never two at once but for a hedge");
                    prop_assert!(traits.idempotent || !broken_at_last || event != Event::Broken);
                    under_way = 1;
                    priced += u64::from(is_priced || action == Action::AskHinted);
                    is_priced = false;
                }
                Action::Hedge => {
                    prop_assert!(traits.hedged && under_way == 1);
                    under_way = 2;
                    priced += 1;
                }
                Action::Rest { until } => {
                    let reached_a_node = |event: Event| {
                        matches!(event, Event::Misdirected { .. } | Event::NotReady { .. } | Event::Broken)
                    };
                    is_priced |= reached_a_node(event);
                    prop_assert!(under_way == 0 && until <= attempts.deadline());
                    prop_assert!(event != Event::Broken || (traits.idempotent && traits.replayable));
                }
                Action::Deliver => over = true,
                Action::GiveUp(Reason::Broken) => {
                    over = true;
                    prop_assert!(event == Event::Broken && attempts.may_be_done());
                }
                Action::GiveUp(reason) => {
                    over = true;
                    prop_assert!(event == Event::Late || !matches!(reason, Reason::Deadline(_)));
                }
                Action::Listen => {}
            }
            prop_assert!(attempts.may_be_done() || !broken_at_last);
            prop_assert!(attempts.tries() <= policy.tries);
            prop_assert!(paid == priced && paid <= capacity, "{} tokens for {} tries", paid, priced);
        }
        prop_assert_eq!(attempts.deadline(), begin + policy.deadline_ms);
    }

    /// R3: whatever the nodes answer, no more tries reach them than the budget pays for.
    #[test]
    fn r3_a_storm_of_refusals_is_answered_by_rest(requests in 1u64..300, seed in any::<u64>()) {
        let policy = RetryPolicy::default();
        let mut budget = Budget::new(BudgetPolicy { capacity: 10, ..EMPTY });
        let mut sent = 0;
        for request in 0..requests {
            budget.earn(1);
            let traits = RequestTraits { idempotent: true, hedged: false, replayable: true };
            let mut now = Millis(0);
            let mut attempts = Attempts::begin(now, &policy, traits, seed ^ request);
            let mut action = Action::Ask;
            loop {
                action = match action {
                    Action::Ask => { sent += 1; attempts.step(now, Event::NotReady { after_ms: 0 }, &policy, &mut budget) }
                    Action::Rest { until } if until >= attempts.deadline() => {
                        attempts.step(attempts.deadline(), Event::Late, &policy, &mut budget)
                    }
                    Action::Rest { until } => { now = until; attempts.step(now, Event::Woke, &policy, &mut budget) }
                    Action::GiveUp(Reason::Deadline(LastFailure::NotReady)) => break,
                    other => panic!("{other:?}"),
                };
            }
        }
        prop_assert!(sent <= requests + requests / 10 + 10 + 1, "{} for {}", sent, requests);
    }
}

fn rests(traits: RequestTraits, event: Event, capacity: u64) -> Action {
    let policy = RetryPolicy::default();
    let mut budget = Budget::new(BudgetPolicy { capacity, ..EMPTY });
    Attempts::begin(Millis(0), &policy, traits, 1).step(Millis(0), event, &policy, &mut budget)
}

#[test]
fn each_class_of_failure_as_the_table_says() {
    let write = RequestTraits { idempotent: false, hedged: false, replayable: true };
    let streamed = RequestTraits { replayable: false, ..write };
    let read = RequestTraits { idempotent: true, hedged: true, replayable: true };
    let is_rest = |action| matches!(action, Action::Rest { .. });
    // Nothing was done: always again, if only the budget or the body allows.
    for event in [Event::Nobody, Event::NotConnected { another: false }] {
        assert!(is_rest(rests(write, event, 0)) && is_rest(rests(streamed, event, 0)), "{event:?}");
    }
    assert_eq!(rests(write, Event::NotConnected { another: true }, 0), Action::Ask);
    assert!(is_rest(rests(write, Event::NotReady { after_ms: 1 }, 0)));
    assert_eq!(rests(write, Event::Misdirected { hinted: true }, 1), Action::AskHinted);
    assert!(is_rest(rests(write, Event::Misdirected { hinted: true }, 0)));
    assert!(is_rest(rests(write, Event::Misdirected { hinted: false }, 1)));
    let kept = |last_failure| Action::GiveUp(Reason::NotKept(last_failure));
    assert_eq!(rests(streamed, Event::NotReady { after_ms: 1 }, 9), kept(LastFailure::NotReady));
    assert_eq!(rests(streamed, Event::Misdirected { hinted: true }, 9), kept(LastFailure::Misdirected));
    // It may have been done.
    assert_eq!(rests(write, Event::Broken, 9), Action::GiveUp(Reason::Broken));
    assert!(is_rest(rests(read, Event::Broken, 1)));
    assert!(is_rest(rests(read, Event::Broken, 0)), "until there is a token");
    let streamed_read = RequestTraits { replayable: false, ..read };
    assert_eq!(rests(streamed_read, Event::Broken, 9), kept(LastFailure::Broken));
    assert_eq!(rests(read, Event::Slow, 1), Action::Hedge);
    assert_eq!(rests(read, Event::Slow, 0), Action::Listen);
    assert_eq!(rests(write, Event::Slow, 9), Action::Listen);
}

#[test]
fn what_broke_off_without_a_token_is_sent_again_when_there_is_one() {
    let policy = RetryPolicy::default();
    let mut budget = Budget::new(BudgetPolicy { capacity: 1, ..EMPTY });
    assert!(budget.spend(Millis(0)));
    let named = RequestTraits { idempotent: true, hedged: false, replayable: true };
    let mut attempts = Attempts::begin(Millis(0), &policy, named, 1);
    let Action::Rest { until } = attempts.step(Millis(0), Event::Broken, &policy, &mut budget) else {
        panic!("rest")
    };
    let Action::Rest { until } = attempts.step(until, Event::Woke, &policy, &mut budget) else {
        panic!("there is no token yet")
    };
    budget.earn(10);
    assert_eq!(attempts.step(until, Event::Woke, &policy, &mut budget), Action::Ask);
    assert!(attempts.may_be_done(), "the first try may have done it, whatever the second one says");
    let late = attempts.deadline();
    let given_up = Action::GiveUp(Reason::Deadline(LastFailure::None));
    assert_eq!(attempts.step(late, Event::Late, &policy, &mut budget), given_up);
}

#[test]
fn the_first_good_answer_wins_and_a_bad_one_waits_for_the_other() {
    let policy = RetryPolicy::default();
    let mut budget = Budget::new(BudgetPolicy::default());
    let traits = RequestTraits { idempotent: true, hedged: true, replayable: true };
    let mut attempts = Attempts::begin(Millis(0), &policy, traits, 1);
    let mut step = |event| attempts.step(Millis(1), event, &policy, &mut budget);
    assert_eq!(step(Event::Slow), Action::Hedge);
    assert_eq!(step(Event::Answer { good: false }), Action::Listen);
    assert_eq!(step(Event::Slow), Action::Listen, "hedged once only");
    assert_eq!(step(Event::Answer { good: false }), Action::Deliver);
    assert_eq!(step(Event::Late), Action::Listen);
}

#[test]
fn a_hint_is_used_once_in_a_row_and_rests_grow_with_jitter() {
    let policy = RetryPolicy::default();
    let mut budget = Budget::new(BudgetPolicy::default());
    let traits = RequestTraits { idempotent: false, hedged: false, replayable: true };
    let mut attempts = Attempts::begin(Millis(0), &policy, traits, 1);
    let hinted = Event::Misdirected { hinted: true };
    assert_eq!(attempts.step(Millis(0), hinted, &policy, &mut budget), Action::AskHinted);
    let Action::Rest { .. } = attempts.step(Millis(0), hinted, &policy, &mut budget) else { panic!("rest") };
    let mut waits = vec![];
    for round in 0..10u64 {
        let now = Millis(round);
        assert_eq!(attempts.step(now, Event::Woke, &policy, &mut budget), Action::Ask);
        let Action::Rest { until } = attempts.step(now, Event::Nobody, &policy, &mut budget) else {
            panic!("rest")
        };
        waits.push(until.since(now));
    }
    for (round, wait) in waits.iter().enumerate() {
        let whole = (policy.rest_ms << (round + 1)).min(policy.longest_rest_ms);
        assert!(*wait >= whole / 2 && *wait <= whole, "{waits:?}");
    }
    let differ = |seed| {
        let mut attempts = Attempts::begin(Millis(0), &policy, traits, seed);
        attempts.step(Millis(0), Event::NotReady { after_ms: 0 }, &policy, &mut budget.clone())
    };
    assert!((0..20).any(|seed| differ(seed) != differ(seed + 1)));
}

#[test]
fn a_hedge_and_a_hint_are_tries_and_the_last_try_is_the_last() {
    let traits = RequestTraits { idempotent: true, hedged: true, replayable: true };
    let policy = RetryPolicy { tries: 1, ..RetryPolicy::default() };
    let mut budget = Budget::new(BudgetPolicy { capacity: 9, ..EMPTY });
    let mut first =
        |event| Attempts::begin(Millis(0), &policy, traits, 1).step(Millis(0), event, &policy, &mut budget);
    assert_eq!(first(Event::Slow), Action::Listen, "no try is left for a hedge");
    let given_up = |last_failure| Action::GiveUp(Reason::Tries(last_failure));
    assert_eq!(first(Event::Misdirected { hinted: true }), given_up(LastFailure::Misdirected));
    assert_eq!(
        first(Event::NotReady { after_ms: 5 }),
        given_up(LastFailure::NotReady),
        "it rests for nothing"
    );
    assert_eq!(budget.left(), 9, "what is not tried costs nothing");
}

#[test]
fn a_request_that_ends_while_it_rests_takes_no_token() {
    let traits = RequestTraits { idempotent: true, hedged: false, replayable: true };
    let policy = RetryPolicy::default();
    let mut budget = Budget::new(BudgetPolicy { capacity: 1, ..EMPTY });
    let mut attempts = Attempts::begin(Millis(0), &policy, traits, 1);
    let resting = attempts.step(Millis(0), Event::NotReady { after_ms: 0 }, &policy, &mut budget);
    assert!(matches!(resting, Action::Rest { .. }) && budget.left() == 1);
    attempts.step(attempts.deadline(), Event::Late, &policy, &mut budget);
    assert_eq!(budget.left(), 1);
}
