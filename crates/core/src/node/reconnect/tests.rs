use super::*;
use crate::limits::{
    LATE_BY, RECONNECT_PACE_PER_S, RECONNECTS_PER_S, ROUTER_REST_MS, SPREAD_MS, WORKER_REST_MS,
};
use proptest::prelude::*;

/// The moments at which somebody tries, from the loss at 0 on, who is told `spread_ms`, knows so many coordinators,
/// draws these lots in turn, and is had by none before `leaderless_ms`.
fn tries(spread_ms: u64, coordinators: usize, leaderless_ms: u64, lots: &[f64]) -> Vec<u64> {
    let mut backoff = ReconnectBackoff::of_worker();
    backoff.connected();
    backoff.set_spread(spread_ms);
    let (mut now, mut tries) = (0, Vec::new());
    for lot in lots.iter().cycle() {
        now += backoff.next_delay_ms(Millis(now), coordinators, *lot);
        tries.push(now);
        if now >= leaderless_ms {
            break;
        }
    }
    tries
}

/// The most within any second.
fn peak(mut times: Vec<u64>) -> usize {
    times.sort_unstable();
    let within = |from: usize| times[from..].partition_point(|time| *time < times[from] + 1_000);
    (0..times.len()).map(within).max().unwrap_or(0)
}

#[test]
fn r7_rests_are_a_quarter_of_the_time_looked_within_their_bounds() {
    let most = |looked: u64, attempts: u32, spread: u64, lot: f64| {
        let mut backoff = ReconnectBackoff::of_worker();
        backoff.set_spread(spread);
        backoff.state = State::Looking(Millis(1_000), attempts - 1);
        backoff.next_delay_ms(Millis(1_000 + looked), 2, lot)
    };
    assert_eq!(
        [0, 400, 800, 4_000, 8_000, 100_000].map(|looked| most(looked, 2, 0, 1.0)),
        [100, 100, 200, 1_000, 2_000, 2_000]
    );
    assert_eq!([800, 100_000].map(|looked| most(looked, 2, 0, 0.0)), [100, 1_000]);
    assert_eq!([0, 100_000].map(|looked| most(looked, 2, 3_000, 1.0)), [3_000, 3_000]);
    assert_eq!(most(0, 2, 3_000, 0.0), 1_500);
    assert_eq!(most(8_000, 1, 3_000, 1.0), 100, "the next may have us");
    assert_eq!(most(0, 1, 3_000, 0.0), 50);
}

#[test]
fn r7_a_line_that_is_lost_is_made_anew_at_any_moment_of_the_spread() {
    let first = |spread, lot| {
        let mut backoff = ReconnectBackoff::of_router();
        backoff.set_spread(spread);
        backoff.connected();
        backoff.next_delay_ms(Millis(7), 3, lot)
    };
    assert_eq!([0.0, 0.25, 1.0, 7.0].map(|lot| first(2_000, lot)), [0, 500, 2_000, 2_000]);
    assert_eq!([0.0, 0.5, 1.0].map(|lot| first(0, lot)), [0, 50, 100]);
    assert_eq!(first(u64::MAX, 1.0), SPREAD_MS);
}

#[test]
fn r7_who_has_never_been_had_looks_from_its_first_attempt_on_and_then_begins_anew() {
    let mut backoff = ReconnectBackoff::of_router();
    assert_eq!(backoff.next_delay_ms(Millis(50_000), 1, 1.0), 100);
    assert_eq!(backoff.next_delay_ms(Millis(54_000), 1, 1.0), 1_000);
    assert_eq!(backoff.next_delay_ms(Millis(500_000), 1, 1.0), ROUTER_REST_MS);
    backoff.connected();
    assert_eq!([0.5; 2].map(|lot| backoff.next_delay_ms(Millis(600_000), 1, lot)), [50, 75]);
}

#[test]
fn r7_the_spread_is_as_wide_as_the_fleet_needs_and_no_wider_than_it_can_bear() {
    let workers = [0, 1, 20, 500, 1_000, 5_000, 10_000, usize::MAX];
    assert_eq!(
        workers.map(|workers| worker_spread_ms(workers, 8_000)),
        [100, 100, 100, 103, 205, 1_639, 2_000, 2_000]
    );
    assert_eq!([20, 500, 10_000].map(|workers| worker_spread_ms(workers, 300)), [75, 75, 75]);
    assert_eq!([1, 10_000, usize::MAX].map(router_spread_ms), [100, 2_000, 2_000]);
    for routers in 1..=10_000 {
        let pace = routers as u64 * 1_000 / router_spread_ms(routers);
        assert!(pace <= RECONNECT_PACE_PER_S, "{routers} come at {pace} a second");
    }
}

#[test]
fn r7_the_rests_of_workers_stay_below_the_patience_of_a_coordinator() {
    assert_eq!(
        tries(0, 1, 1_000_000, &[1.0]).windows(2).map(|pair| pair[1] - pair[0]).max(),
        Some(WORKER_REST_MS)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// In a small cluster whoever looks is there when somebody leads, but for a quarter of the time that nobody did.
    #[test]
    fn r7_in_a_small_cluster_nobody_is_late(
        coordinators in 1usize..6,
        leaderless_ms in 0u64..8_000,
        lots in prop::collection::vec(0.0f64..=1.0, 1..50),
    ) {
        let last = tries(worker_spread_ms(20, 8_000), coordinators, leaderless_ms, &lots).pop().unwrap();
        let late = last - leaderless_ms;
        prop_assert!(late <= leaderless_ms / LATE_BY + RECONNECT_MS, "{late} ms late");
        prop_assert!(leaderless_ms > 0 || last <= RECONNECT_MS);
    }

    /// Many that are lost at once come below the cap, whoever leads next, and whenever.
    #[test]
    fn r7_many_stay_below_the_cap(
        workers in 1usize..=10_000,
        leaderless_ms in prop::sample::select(vec![0u64, 50, 500, 3_200, 6_000]),
        seed in any::<u64>(),
    ) {
        let spread = worker_spread_ms(workers, 8_000);
        let lots = lots(seed, workers + 100);
        let arrivals: Vec<_> = (0..workers)
            .map(|at| *tries(spread, 3, leaderless_ms, &lots[at..at + 100]).last().unwrap())
            .collect();
        let peak = peak(arrivals) as u64;
        prop_assert!(peak <= RECONNECTS_PER_S, "{peak} of {workers} come in a second");
    }
}

/// So many lots, spread evenly.
fn lots(seed: u64, count: usize) -> Vec<f64> {
    let golden = 0x9e37_79b9_7f4a_7c15_u64;
    let lot = |at: u64| {
        let mut bits = seed.wrapping_add(at.wrapping_mul(golden));
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    };
    (0..count as u64).map(lot).collect()
}
