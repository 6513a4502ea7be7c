//! The keys of a what-if, with what each weighs.

use super::error::WhatIfError;
use partage_core::keyspace::key::Key;
use partage_core::limits;

/// A key and what it costs.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// The key: a sample has each once.
    pub key: Key,
    /// Its load, in any unit: requests, rows, CPU. Zero or more.
    pub weight: f64,
    /// What has to be copied when it moves.
    pub bytes: u64,
}

/// Distinct keys. Those given at the start are in key order, later ones come after them.
#[derive(Debug, Clone)]
pub struct Sample {
    items: Vec<Item>,
    /// How often keys have grown, so that every grown key has a name of its own.
    growths: u32,
}

impl Sample {
    /// In any order. A key that is named more than once weighs the sum, and has the most bytes that were
    /// given: a log of requests is a sample of loads.
    pub fn new(mut items: Vec<Item>) -> Result<Sample, WhatIfError> {
        if items.is_empty() {
            return Err(WhatIfError::NoKeys);
        }
        check_count(items.len())?;
        if let Some(bad) = items.iter().find(|item| !(item.weight.is_finite() && item.weight >= 0.0)) {
            return Err(WhatIfError::Weight { key: bad.key.clone(), weight: bad.weight });
        }
        // Sums of floats depend on the order of the terms, so that is fixed too.
        let order = |a: &Item, b: &Item| {
            a.key.cmp(&b.key).then(a.weight.total_cmp(&b.weight)).then(a.bytes.cmp(&b.bytes))
        };
        items.sort_unstable_by(order);
        items.dedup_by(|again, first| {
            let same = again.key == first.key;
            if same {
                first.weight += again.weight;
                first.bytes = first.bytes.max(again.bytes);
            }
            same
        });
        Ok(Sample { items, growths: 0 })
    }

    /// All keys: those of the start in their order, and then those that came.
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Never: a sample has at least one key.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Index of the key with the most weight, the first of equals.
    pub fn heaviest(&self) -> usize {
        let heavier = |best: usize, at: usize| {
            if self.items[at].weight > self.items[best].weight { at } else { best }
        };
        (0..self.items.len()).fold(0, heavier)
    }

    /// The index of `key` among the items, if it is there.
    pub fn find(&self, key: &Key) -> Option<usize> {
        self.items.iter().position(|item| item.key == *key)
    }

    /// Makes one key weigh so much.
    pub(super) fn set_weight(&mut self, at: usize, weight: f64) {
        self.items[at].weight = weight;
    }

    /// `factor` times as many keys. The new ones look like the old ones and lie next to them: `libc6!1.1` is a
    /// first copy of `libc6`. With 1.5, every second key gets a copy.
    pub(super) fn grow(&mut self, factor: f64) -> Result<(), WhatIfError> {
        if !(1.0..=limits::WHATIF_FACTOR).contains(&factor) {
            return Err(WhatIfError::Factor { what: "growth", factor, least: 1.0 });
        }
        let before = self.items.len();
        let copies = (factor - 1.0) * before as f64;
        check_count((before as f64 + copies).min(1e15) as usize)?;
        self.growths += 1;
        // How many copies the first i keys have together.
        let sum = |i: usize| ((factor - 1.0) * i as f64 + 1e-9) as usize;
        for at in 0..before {
            for copy in 1..=sum(at + 1) - sum(at) {
                let item = self.items[at].clone();
                let key = grown(&item.key, self.growths, copy);
                self.items.push(Item { key, ..item });
            }
        }
        Ok(())
    }
}

fn check_count(found: usize) -> Result<(), WhatIfError> {
    let limit = limits::WHATIF_KEYS;
    if found > limit { Err(WhatIfError::TooMany { what: "keys", found, limit }) } else { Ok(()) }
}

/// `!` sorts below letters and digits, so a copy stays beside its original. A key at the limit of length
/// gives up its end.
fn grown(key: &Key, growth: u32, copy: usize) -> Key {
    let suffix = format!("!{growth}.{copy}");
    let keep = key.as_bytes().len().min(limits::KEY_BYTES - suffix.len());
    let bytes = [&key.as_bytes()[..keep], suffix.as_bytes()].concat();
    Key::new(&bytes).unwrap_or_else(|_| key.clone())
}
