//! Bounds cut into parts and parts joined into one: the geometry of splits and merges, whichever part of the code asks for them.
//!
//! ```text
//!  keys    [ a ─────────── z )      cut at m       [ a ── m ) [ m ── z )
//!  hashes  [ 0 ─────────── 9 ]      cut at 4       [ 0 ─ 3 ]  [ 4 ── 9 ]
//!  slots   1 of 4                   refined to 8   1 of 8     5 of 8
//! ```
//!
//! Parts hold exactly the keys of the whole, each once (O8). Names are whole: a service divides them itself.

use super::slot::{common_multiple, gcd as greatest_common_divisor};
use super::{Bounds, Position};
use crate::keyspace::key::{HashRange, Key, KeyRange};
use std::collections::BTreeSet;

/// Why bounds cannot be cut at the given places.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CutError {
    /// The caller named no place to cut.
    #[error("nothing to cut at was given: no key, no point")]
    Nowhere,
    /// A key outside, at the begin, or not above the one before it.
    #[error("key {key:?} is not above {above:?} and inside {range}")]
    Key {
        /// The key at which the shard cannot be cut.
        key: Key,
        /// The begin, or the cut before it.
        above: Key,
        /// The range that was to be cut.
        range: KeyRange,
    },
    /// A point outside, at the begin, or not above the one before it.
    #[error("point {point:016x} is not above {above:016x} and inside {range}")]
    Point {
        /// The point at which the shard cannot be cut.
        point: u64,
        /// The begin, or the cut before it.
        above: u64,
        /// The range that was to be cut.
        range: HashRange,
    },
    /// A range of one point.
    #[error("the range {0} is a single point")]
    OnePoint(HashRange),
    /// A key after which no other key can be cut off.
    #[error("the key is as long as a key can be")]
    LongestKey,
    /// Bounds that are no range, or hold no such position.
    #[error("{0} cannot be cut there")]
    Whole(String),
}

impl CutError {
    /// What to do instead: the end of the sentence.
    pub fn way_out(&self) -> &'static str {
        match self {
            CutError::Nowhere => "give one or more, or none for the middle",
            CutError::Key { .. } => {
                "give keys in order, each once, that lie inside the shard and not at its begin"
            }
            CutError::Point { .. } => {
                "give points in order, each once, that lie inside the shard and not at its begin"
            }
            CutError::OnePoint(_) => "it cannot be cut any further",
            CutError::LongestKey => "cut beside it instead",
            CutError::Whole(_) => "only ranges can be cut, at positions inside them",
        }
    }
}

/// Where bounds begin, in an order in which neighbours stand side by side.
pub fn lowest(bounds: &Bounds) -> Position<'_> {
    match bounds {
        Bounds::Keys(range) => Position::Key(range.begin.as_bytes()),
        Bounds::Hashes(range) => Position::Point(range.first),
        Bounds::Slot(slot) => Position::Value(slot.number().into()),
        Bounds::Name(name) => Position::Name(name.as_str().as_bytes()),
    }
}

/// The range cut before each of `keys`, which must lie inside it, above its begin, in order.
pub fn cut_keys(range: &KeyRange, keys: &[Key]) -> Result<Vec<Bounds>, CutError> {
    if keys.is_empty() {
        return Err(CutError::Nowhere);
    }
    let mut begin = range.begin.clone();
    let mut parts = Vec::with_capacity(keys.len() + 1);
    for key in keys {
        if *key <= begin || !range.contains(key.as_bytes()) {
            return Err(CutError::Key { key: key.clone(), above: begin, range: range.clone() });
        }
        parts.push(Bounds::Keys(KeyRange { begin, end: key.clone() }));
        begin = key.clone();
    }
    parts.push(Bounds::Keys(KeyRange { begin, end: range.end.clone() }));
    Ok(parts)
}

/// The range cut before each of `points`, which must lie inside it, above its first, in order.
pub fn cut_points(range: HashRange, points: &[u64]) -> Result<Vec<Bounds>, CutError> {
    if points.is_empty() {
        return Err(CutError::Nowhere);
    }
    let mut first = range.first;
    let mut parts = Vec::with_capacity(points.len() + 1);
    for point in points {
        if *point <= first || *point > range.last {
            return Err(CutError::Point { point: *point, above: first, range });
        }
        parts.push(Bounds::Hashes(HashRange { first, last: point - 1 }));
        first = *point;
    }
    parts.push(Bounds::Hashes(HashRange { first, last: range.last }));
    Ok(parts)
}

/// The point that halves a range of hashes.
pub fn middle(range: HashRange) -> Result<u64, CutError> {
    let half = (range.last - range.first) / 2;
    if range.first < range.last { Ok(range.first + half + 1) } else { Err(CutError::OnePoint(range)) }
}

/// The range cut around what lies at `position`: below it, it alone, above it; empty parts left out. One part
/// when it is alone in there already.
pub fn around(bounds: &Bounds, position: Position<'_>) -> Result<Vec<Bounds>, CutError> {
    let whole = || vec![bounds.clone()];
    match (bounds, position) {
        (Bounds::Keys(range), Position::Key(partition)) if range.contains(partition) => {
            let at = Key::new(partition).map_err(|_| CutError::LongestKey)?;
            let after = at.successor().ok_or(CutError::LongestKey)?;
            let inside = |cut: &Key| *cut > range.begin && range.contains(cut.as_bytes());
            let cuts: Vec<Key> = [at, after].into_iter().filter(inside).collect();
            if cuts.is_empty() { Ok(whole()) } else { cut_keys(range, &cuts) }
        }
        (Bounds::Hashes(range), Position::Point(point)) if range.contains(point) => {
            let after = point.checked_add(1).filter(|after| *after <= range.last);
            let cuts: Vec<u64> = Some(point).filter(|p| *p > range.first).into_iter().chain(after).collect();
            if cuts.is_empty() { Ok(whole()) } else { cut_points(*range, &cuts) }
        }
        (bounds, _) => Err(CutError::Whole(bounds.to_string())),
    }
}

/// The bounds that hold what `parts`, in any order, hold together; none when that is no single stretch or slot.
pub fn joined(parts: &[&Bounds]) -> Option<Bounds> {
    let mut parts = parts.to_vec();
    parts.sort_by(|a, b| lowest(a).cmp(&lowest(b)));
    match parts.first()? {
        Bounds::Slot(_) => joined_slots(&parts),
        first => parts[1..].iter().try_fold((*first).clone(), |sum, next| meet(&sum, next)),
    }
}

/// Whether some key lies in both. Bounds of different shardings hold none in common.
pub fn overlap(these: &Bounds, those: &Bounds) -> bool {
    match (these, those) {
        (Bounds::Keys(a), Bounds::Keys(b)) => {
            let begins_before_end = |a: &KeyRange, b: &KeyRange| b.end.is_empty() || a.begin < b.end;
            begins_before_end(a, b) && begins_before_end(b, a)
        }
        (Bounds::Hashes(a), Bounds::Hashes(b)) => a.first <= b.last && b.first <= a.last,
        (Bounds::Slot(a), Bounds::Slot(b)) => {
            let shared = greatest_common_divisor(a.of(), b.of());
            a.number() % shared == b.number() % shared
        }
        (Bounds::Name(a), Bounds::Name(b)) => a == b,
        (Bounds::Keys(_) | Bounds::Hashes(_) | Bounds::Slot(_) | Bounds::Name(_), _) => false,
    }
}

/// The keys that lie in both; none if there are none.
pub fn intersection(these: &Bounds, those: &Bounds) -> Option<Bounds> {
    if !overlap(these, those) {
        return None;
    }
    match (these, those) {
        (Bounds::Keys(a), Bounds::Keys(b)) => {
            let begin = (&a.begin).max(&b.begin).clone();
            let ends = [&a.end, &b.end].into_iter().filter(|end| !end.is_empty());
            let end = ends.min().cloned().unwrap_or(Key::empty());
            Some(Bounds::Keys(KeyRange { begin, end }))
        }
        (Bounds::Hashes(a), Bounds::Hashes(b)) => {
            let (first, last) = (a.first.max(b.first), a.last.min(b.last));
            Some(Bounds::Hashes(HashRange { first, last }))
        }
        (Bounds::Slot(a), Bounds::Slot(b)) => {
            let of = common_multiple([a.of(), b.of()])?;
            a.refined(of).map(Bounds::Slot).find(|slot| holds(those, slot))
        }
        (other, _) => Some(other.clone()),
    }
}

/// The keys of `whole` that do not lie in `part`, in stretches or slots.
pub fn without(whole: &Bounds, part: &Bounds) -> Vec<Bounds> {
    match (whole, intersection(whole, part)) {
        (_, None) => vec![whole.clone()],
        (Bounds::Keys(whole), Some(Bounds::Keys(part))) => {
            let left = (whole.begin < part.begin)
                .then(|| KeyRange { begin: whole.begin.clone(), end: part.begin.clone() });
            let goes_on = !part.end.is_empty() && part.end != whole.end;
            let right = goes_on.then(|| KeyRange { begin: part.end.clone(), end: whole.end.clone() });
            left.into_iter().chain(right).map(Bounds::Keys).collect()
        }
        (Bounds::Hashes(whole), Some(Bounds::Hashes(part))) => {
            let left =
                (whole.first < part.first).then(|| HashRange { first: whole.first, last: part.first - 1 });
            let right =
                (part.last < whole.last).then(|| HashRange { first: part.last + 1, last: whole.last });
            left.into_iter().chain(right).map(Bounds::Hashes).collect()
        }
        (Bounds::Slot(whole), Some(Bounds::Slot(part))) => {
            whole.refined(part.of()).filter(|slot| *slot != part).map(Bounds::Slot).collect()
        }
        (_, Some(_)) => Vec::new(),
    }
}

/// Whether every key of `inner` lies in `outer`.
pub fn holds(outer: &Bounds, inner: &Bounds) -> bool {
    match (outer, inner) {
        (Bounds::Keys(outer), Bounds::Keys(inner)) => {
            let ends_before = !inner.end.is_empty() && inner.end <= outer.end;
            outer.begin <= inner.begin && (outer.end.is_empty() || ends_before)
        }
        (Bounds::Hashes(outer), Bounds::Hashes(inner)) => {
            outer.first <= inner.first && inner.last <= outer.last
        }
        (Bounds::Slot(outer), Bounds::Slot(inner)) => {
            inner.of() % outer.of() == 0 && inner.number() % outer.of() == outer.number()
        }
        (Bounds::Name(outer), Bounds::Name(inner)) => outer == inner,
        (Bounds::Keys(_) | Bounds::Hashes(_) | Bounds::Slot(_) | Bounds::Name(_), _) => false,
    }
}

/// Two stretches of which the second begins where the first ends.
fn meet(left: &Bounds, right: &Bounds) -> Option<Bounds> {
    match (left, right) {
        (Bounds::Keys(a), Bounds::Keys(b)) if a.end == b.begin && !a.end.is_empty() => {
            Some(Bounds::Keys(KeyRange { begin: a.begin.clone(), end: b.end.clone() }))
        }
        (Bounds::Hashes(a), Bounds::Hashes(b)) if a.last.checked_add(1) == Some(b.first) => {
            Some(Bounds::Hashes(HashRange { first: a.first, last: b.last }))
        }
        _ => None,
    }
}

/// Slots `i, i + d, i + 2d, …` of a ring make up slot i of d; their share of the ring says what d is.
fn joined_slots(parts: &[&Bounds]) -> Option<Bounds> {
    let slots: Option<Vec<_>> = parts
        .iter()
        .map(|part| match part {
            Bounds::Slot(slot) => Some(*slot),
            Bounds::Keys(_) | Bounds::Hashes(_) | Bounds::Name(_) => None,
        })
        .collect();
    let slots = slots?;
    let ring = common_multiple(slots.iter().map(|slot| slot.of()))?;
    let held = slots.iter().try_fold(0u32, |sum, slot| sum.checked_add(ring / slot.of()))?;
    let whole =
        slots.first()?.coarser(ring.checked_div(held).filter(|of| of.checked_mul(held) == Some(ring))?);
    let numbers: BTreeSet<u32> = slots.iter().flat_map(|slot| slot.among(ring)).collect();
    whole.among(ring).eq(numbers).then_some(Bounds::Slot(whole))
}

#[cfg(test)]
mod tests {
    use super::super::Slot;
    use super::*;
    use crate::base::name::PartitionName;
    use proptest::prelude::*;

    fn key(text: &str) -> Key {
        Key::new(text.as_bytes()).unwrap()
    }

    proptest! {
        #[test]
        fn o8_what_is_cut_joins_to_what_it_was(points in proptest::collection::btree_set(1u64.., 1..20)) {
            let points: Vec<u64> = points.into_iter().collect();
            let parts = cut_points(HashRange::ALL, &points).unwrap();
            prop_assert_eq!(parts.len(), points.len() + 1);
            let all: Vec<&Bounds> = parts.iter().rev().collect();
            prop_assert_eq!(joined(&all), Some(Bounds::Hashes(HashRange::ALL)));
            let keys: Vec<Key> = points.iter().map(|point| Key::new(&point.to_be_bytes()).unwrap()).collect();
            let parts = cut_keys(&KeyRange::all(), &keys).unwrap();
            prop_assert_eq!(joined(&parts.iter().collect::<Vec<_>>()), Some(Bounds::Keys(KeyRange::all())));
            prop_assert_eq!(joined(&[&parts[0], &parts[parts.len() - 1]]).is_some(), parts.len() == 2);
        }

        #[test]
        fn o8_what_is_cut_holds_its_parts_and_no_part_holds_it(points in proptest::collection::btree_set(1u64.., 1..20)) {
            let points: Vec<u64> = points.into_iter().collect();
            let keys: Vec<Key> = points.iter().map(|point| Key::new(&point.to_be_bytes()).unwrap()).collect();
            let hashes = cut_points(HashRange::ALL, &points).unwrap();
            let slots = Slot::new(0, 1).unwrap().refined(points.len() as u32 + 1).map(Bounds::Slot).collect();
            let keys = cut_keys(&KeyRange::all(), &keys).unwrap();
            for parts in [hashes, slots, keys] {
                let whole = joined(&parts.iter().collect::<Vec<_>>()).unwrap();
                prop_assert!(parts.iter().all(|part| holds(&whole, part) && holds(part, part)));
                prop_assert!(!parts.iter().any(|part| holds(part, &whole)));
                prop_assert!(!holds(&parts[0], &parts[1]) && !holds(&parts[1], &parts[0]));
            }
        }

        #[test]
        fn k7_slots_join_to_the_slot_that_they_refine_and_to_nothing_less(
            of in 1u32..60, pick in any::<u32>(), factor in 2u32..9, again in 2u32..4,
        ) {
            let whole = Slot::new(pick % of, of).unwrap();
            let mut parts: Vec<Bounds> = whole.refined(of * factor).map(Bounds::Slot).collect();
            // One of them refined once more: slots of several divisors stand side by side.
            let Some(Bounds::Slot(last)) = parts.pop() else { unreachable!() };
            parts.extend(last.refined(of * factor * again).map(Bounds::Slot));
            prop_assert_eq!(joined(&parts.iter().collect::<Vec<_>>()), Some(Bounds::Slot(whole)));
            let fewer: Vec<&Bounds> = parts[1..].iter().collect();
            prop_assert_ne!(joined(&fewer), Some(Bounds::Slot(whole)));
            let twice: Vec<&Bounds> = parts.iter().chain(&parts[..1]).collect();
            prop_assert_eq!(joined(&twice), None);
        }

        #[test]
        fn around_a_point_is_that_point_alone(first in any::<u64>(), last in any::<u64>(), at in any::<u64>()) {
            let range = HashRange { first: first.min(last), last: first.max(last) };
            let bounds = Bounds::Hashes(range);
            let Ok(parts) = around(&bounds, Position::Point(at)) else {
                prop_assert!(!range.contains(at));
                return Ok(());
            };
            let alone = Bounds::Hashes(HashRange { first: at, last: at });
            prop_assert!(parts.contains(&alone));
            prop_assert_eq!(joined(&parts.iter().collect::<Vec<_>>()), Some(bounds));
        }
    }

    #[test]
    fn bounds_overlap_when_some_key_lies_in_both() {
        let keys = |begin: &str, end: &str| Bounds::Keys(KeyRange::new(key(begin), key(end)).unwrap());
        assert!(overlap(&keys("", ""), &keys("b", "c")) && overlap(&keys("a", "c"), &keys("b", "")));
        assert!(!overlap(&keys("a", "b"), &keys("b", "c")) && !overlap(&keys("c", ""), &keys("", "c")));
        let hashes = |first, last| Bounds::Hashes(HashRange { first, last });
        assert!(overlap(&hashes(0, 5), &hashes(5, 9)) && !overlap(&hashes(0, 4), &hashes(5, 9)));
        let slot = |number, of| Bounds::Slot(super::super::Slot::new(number, of).unwrap());
        assert!(overlap(&slot(1, 4), &slot(5, 8)) && overlap(&slot(0, 2), &slot(1, 3)));
        assert!(!overlap(&slot(1, 4), &slot(6, 8)) && !overlap(&keys("", ""), &hashes(0, 9)));
    }

    #[test]
    fn cuts_outside_twice_or_nowhere_are_refused_with_a_way_out() {
        let range = KeyRange::new(key("b"), key("y")).unwrap();
        for keys in [vec![], vec![key("b")], vec![key("y")], vec![key("a")], vec![key("m"), key("m")]] {
            let error = cut_keys(&range, &keys).unwrap_err();
            assert!(!error.way_out().is_empty() && !error.to_string().is_empty());
        }
        let points = HashRange { first: 5, last: 9 };
        for cuts in [vec![], vec![5], vec![10], vec![8, 7]] {
            assert!(cut_points(points, &cuts).is_err(), "{cuts:?}");
        }
        assert_eq!((middle(points), middle(HashRange { first: 5, last: 6 })), (Ok(8), Ok(6)));
        assert!(matches!(middle(HashRange { first: 5, last: 5 }), Err(CutError::OnePoint(_))));
    }

    #[test]
    fn the_lowest_and_the_highest_point_are_cut_off_once() {
        let all = Bounds::Hashes(HashRange::ALL);
        for (point, last) in [(0, 0), (u64::MAX, u64::MAX - 1)] {
            let parts = around(&all, Position::Point(point)).unwrap();
            assert_eq!((parts.len(), &parts[0]), (2, &Bounds::Hashes(HashRange { first: 0, last })));
        }
    }

    #[test]
    fn a_key_alone_stays_and_names_are_whole() {
        let alone = Bounds::Keys(KeyRange::new(key("k"), key("k").successor().unwrap()).unwrap());
        assert_eq!(around(&alone, Position::Key(b"k")), Ok(vec![alone.clone()]));
        let name = Bounds::Name(PartitionName::new("north").unwrap());
        assert!(matches!(around(&name, Position::Name(b"north")), Err(CutError::Whole(_))));
        assert_eq!(joined(&[&name, &name]), None);
    }
}
