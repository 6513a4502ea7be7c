//! Records of a fixed length, made anew from their numbers: the same input, seed and number give the same bytes.
//!
//! ```text
//! key (10 bytes as a rule) · number of the record 8 · bytes that do not shrink
//! ```
//!
//! | input | keys |
//! |---|---|
//! | uniform | drawn from all |
//! | zipf | of a million keys the one of rank r with a chance of 1 / r^0.99; which key has which rank is drawn |
//! | sorted | ascend evenly over all |
//! | reversed | descend so |
//! | equal | one key for all |

use std::str::FromStr;

/// Different keys of the Zipf input.
const ZIPF_KEYS: u64 = 1_000_000;
/// The exponent of the Zipf input: the key of rank r comes with a chance of 1 / r^0.99.
const ZIPF_EXPONENT: f64 = 0.99;
/// Bytes of the number in a value.
const NUMBER_BYTES: usize = 8;

/// How keys are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// Keys are drawn from all keys, each as likely.
    Uniform,
    /// Keys are drawn from a million, and few of them come often.
    Zipf,
    /// Keys ascend with the numbers of records.
    Sorted,
    /// Keys descend with the numbers of records.
    Reversed,
    /// All records have the same key.
    Equal,
}

impl Input {
    /// All of them, with the words that name them.
    pub const ALL: [(Input, &'static str); 5] = [
        (Input::Uniform, "uniform"),
        (Input::Zipf, "zipf"),
        (Input::Sorted, "sorted"),
        (Input::Reversed, "reversed"),
        (Input::Equal, "equal"),
    ];
}

impl FromStr for Input {
    type Err = String;

    fn from_str(word: &str) -> Result<Input, String> {
        let found = Input::ALL.iter().find(|(_, name)| *name == word);
        let words = Input::ALL.map(|(_, name)| name).join(", ");
        found.map(|(input, _)| *input).ok_or_else(|| format!("{word:?} is no input: give one of {words}"))
    }
}

/// How long a record and its key are, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Of a key: at least 1.
    pub key: usize,
    /// Of a record, with its key: at least 8 more.
    pub record: usize,
}

impl Shape {
    /// 100 bytes with keys of 10, as sorts are measured.
    pub const USUAL: Shape = Shape { key: 10, record: 100 };
}

/// Makes each record of an input from its number.
#[derive(Debug, Clone)]
pub struct Generator {
    input: Input,
    shape: Shape,
    records: u64,
    seed: u64,
    zipf: Zipf,
}

impl Generator {
    /// So many records. None: a record of that shape has no room for its number.
    pub fn new(input: Input, shape: Shape, records: u64, seed: u64) -> Option<Generator> {
        let has_room = shape.key > 0 && shape.record >= shape.key + NUMBER_BYTES;
        has_room.then(|| Generator { input, shape, records, seed, zipf: Zipf::new(ZIPF_KEYS, ZIPF_EXPONENT) })
    }

    /// How many records there are.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Writes the record of that number, from 0, into as many bytes as a record has.
    pub fn write(&self, number: u64, record: &mut [u8]) {
        let (key, value) = record.split_at_mut(self.shape.key);
        self.write_key(number, key);
        let (own, rest) = value.split_at_mut(NUMBER_BYTES);
        own.copy_from_slice(&number.to_be_bytes());
        fill(mix(number ^ self.seed.rotate_left(32)), rest);
    }

    /// Records one after the other, from that number on, as many as there is room for.
    pub fn write_all(&self, first: u64, records: &mut [u8]) {
        let numbers = first..self.records;
        records
            .chunks_exact_mut(self.shape.record)
            .zip(numbers)
            .for_each(|(record, number)| self.write(number, record));
    }

    fn write_key(&self, number: u64, key: &mut [u8]) {
        let lot = mix(self.seed.wrapping_add(number.wrapping_mul(STEP)));
        let even = |number: u64| {
            // The number of one of `records` points that lie evenly over 64 bits.
            ((u128::from(number) << 64) / u128::from(self.records.max(1))) as u64
        };
        let (first, more) = match self.input {
            Input::Uniform => (lot, mix(lot)),
            Input::Zipf => {
                let rank = self.zipf.draw(lot);
                (mix(rank ^ self.seed), rank)
            }
            // Equal points would fall together where there are more records than points: the number goes on behind them.
            Input::Sorted => (even(number), number),
            Input::Reversed => {
                let number = self.records.saturating_sub(1).saturating_sub(number);
                (even(number), number)
            }
            Input::Equal => (self.seed, self.seed),
        };
        let whole = (u128::from(first) << 64 | u128::from(more)).to_be_bytes();
        let length = key.len().min(whole.len());
        key[..length].copy_from_slice(&whole[..length]);
        key[length..].fill(0);
    }
}

/// The step between two states of SplitMix (Steele, Lea, Flood 2014).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(STEP);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn fill(seed: u64, bytes: &mut [u8]) {
    let mut state = seed;
    for word in bytes.chunks_mut(8) {
        state = state.wrapping_add(STEP);
        let drawn = mix(state).to_le_bytes();
        word.copy_from_slice(&drawn[..word.len()]);
    }
}

/// Draws ranks from 1 on by rejection-inversion (Hörmann, Derflinger 1996): some 1.1 lots a draw, no table.
#[derive(Debug, Clone, Copy)]
struct Zipf {
    exponent: f64,
    keys: u64,
    /// The integral of the hat at both ends.
    low: f64,
    high: f64,
    /// Ranks nearer than this are taken without another look.
    squeeze: f64,
}

impl Zipf {
    fn new(keys: u64, exponent: f64) -> Zipf {
        let mut zipf = Zipf { exponent, keys, low: 0.0, high: 0.0, squeeze: 0.0 };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(keys as f64 + 0.5);
        zipf.squeeze = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.weight(2.0));
        zipf
    }

    fn weight(&self, rank: f64) -> f64 {
        rank.powf(-self.exponent)
    }

    /// The integral of the weight from 1 to `x`.
    fn integral(&self, x: f64) -> f64 {
        (x.powf(1.0 - self.exponent) - 1.0) / (1.0 - self.exponent)
    }

    fn inverse(&self, y: f64) -> f64 {
        (1.0 + y * (1.0 - self.exponent)).powf(1.0 / (1.0 - self.exponent))
    }

    fn draw(&self, mut lot: u64) -> u64 {
        loop {
            // 53 bits, as many as a float has.
            let part = (lot >> 11) as f64 / (1_u64 << 53) as f64;
            let y = self.high + part * (self.low - self.high);
            let x = self.inverse(y);
            let rank = x.round().clamp(1.0, self.keys as f64);
            if rank - x <= self.squeeze || y >= self.integral(rank + 0.5) - self.weight(rank) {
                return rank as u64;
            }
            lot = mix(lot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const MANY: u64 = 20_000;

    fn keys(input: Input, shape: Shape) -> Vec<Vec<u8>> {
        let generator = Generator::new(input, shape, MANY, 7).unwrap();
        let mut records = vec![0; shape.record * MANY as usize];
        generator.write_all(0, &mut records);
        records.chunks_exact(shape.record).map(|record| record[..shape.key].to_vec()).collect()
    }

    #[test]
    fn a_record_is_the_same_each_time_and_another_one_with_another_number_or_seed() {
        let record = |number, seed| {
            let mut record = [0; 100];
            Generator::new(Input::Uniform, Shape::USUAL, MANY, seed).unwrap().write(number, &mut record);
            record
        };
        assert_eq!(record(3, 1), record(3, 1));
        assert_ne!(record(3, 1)[..10], record(3, 2)[..10]);
        assert_ne!(record(3, 1)[..10], record(4, 1)[..10]);
        assert_eq!(record(3, 1)[10..18], 3u64.to_be_bytes());
        assert!(Generator::new(Input::Uniform, Shape { key: 10, record: 17 }, 1, 1).is_none());
    }

    #[test]
    fn keys_are_spread_as_their_name_says() {
        let (sorted, mut reversed) = (keys(Input::Sorted, Shape::USUAL), keys(Input::Reversed, Shape::USUAL));
        assert!(sorted.is_sorted() && sorted[0] < sorted[MANY as usize / 2]);
        assert!(reversed.is_sorted_by(|one, next| one >= next));
        reversed.reverse();
        assert_eq!(sorted, reversed);
        let equal = keys(Input::Equal, Shape::USUAL);
        assert!(equal.iter().all(|key| *key == equal[0]));
        let uniform = keys(Input::Uniform, Shape::USUAL);
        let below = uniform.iter().filter(|key| key[0] < 0x40).count();
        assert!(below.abs_diff(MANY as usize / 4) < 400, "{below} of {MANY} in the first quarter");
        assert_eq!(keys(Input::Uniform, Shape { key: 1, record: 9 })[0].len(), 1);
    }

    #[test]
    fn zipf_draws_each_rank_as_often_as_it_should() {
        let mut counts: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        keys(Input::Zipf, Shape::USUAL).into_iter().for_each(|key| *counts.entry(key).or_default() += 1);
        let mut counts: Vec<u64> = counts.into_values().collect();
        counts.sort_unstable_by_key(|count| std::cmp::Reverse(*count));
        let sum: f64 = (1..=ZIPF_KEYS).map(|rank| (rank as f64).powf(-ZIPF_EXPONENT)).sum();
        for (rank, count) in (1..=4).zip(&counts) {
            let expected = MANY as f64 * f64::from(rank).powf(-ZIPF_EXPONENT) / sum;
            let off = (*count as f64 - expected).abs();
            assert!(off < 5.0 * expected.sqrt(), "rank {rank}: {count}, and {expected} are expected");
        }
        assert!(counts.len() > 5_000, "{} different keys", counts.len());
    }
}
