//! Keys of several columns, as bytes whose order is that of the values.
//!
//! A shuffle orders keys as bytes. Who orders by values writes one column after the other with [`put`], the first one first: then
//! two keys compare as their columns do, each ascending or descending, with nulls first or last.
//!
//! | value | bytes |
//! |---|---|
//! | null | `00` where nulls are first, `ff` where they are last, whichever way the others are ordered |
//! | false, true | `01`, and `00` or `01` |
//! | a number | `02`; the nearest float of 64 bits, most significant byte first, with its sign bit flipped, and all bits if it is negative; what an integer is above that float, as 2 bytes with the sign bit flipped |
//! | a text, bytes | `03`; the bytes, of which each `00` is followed by `ff`; `00 00` |
//!
//! Where the order descends, all bits of a value that is no null are flipped.
//!
//! Integers of 64 bits, signed or not, and floats are one order of numbers, and exact: `2^53 + 1` comes behind the float `2^53`,
//! and a float with the value of an integer is equal to it, but that −0 comes before 0. Each NaN is the same and comes behind all
//! other numbers. Values of different types have an order too: truth values, numbers, texts.

use std::cmp::Ordering;

/// How a column is ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Order {
    /// Whether the largest value comes first.
    pub descends: bool,
    /// Whether nulls come first.
    pub nulls_first: bool,
}

/// What a column has in one row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// No value at all: [`Order::nulls_first`] says where it comes.
    Null,
    /// False or true; false comes first where the order ascends.
    Bool(bool),
    /// An integer, ordered with the floats and the unsigned ones by its value.
    Int(i64),
    /// An integer that is not negative.
    Unsigned(u64),
    /// A float; −0 comes before 0, and each NaN behind all other numbers.
    Float(f64),
    /// A text, or other bytes: they are ordered as bytes, which for UTF-8 is the order of code points.
    Text(&'a [u8]),
}

const NULL_FIRST: u8 = 0x00;
const NULL_LAST: u8 = 0xff;
const BOOL: u8 = 1;
const NUMBER: u8 = 2;
const TEXT: u8 = 3;

/// What follows a byte 0 of a text, and what follows the text.
const ZERO: [u8; 2] = [0x00, 0xff];
const END: [u8; 2] = [0x00, 0x00];

/// Writes a column behind those before it.
pub fn put(value: Value<'_>, order: Order, key: &mut Vec<u8>) {
    let begin = key.len();
    match value {
        Value::Null => {
            key.push(if order.nulls_first { NULL_FIRST } else { NULL_LAST });
            return;
        }
        Value::Bool(value) => key.extend([BOOL, u8::from(value)]),
        Value::Int(value) => put_integer(i128::from(value), value as f64, key),
        Value::Unsigned(value) => put_integer(i128::from(value), value as f64, key),
        Value::Float(value) => put_number(value, 0, key),
        Value::Text(text) => {
            key.push(TEXT);
            let mut parts = text.split(|byte| *byte == 0);
            key.extend_from_slice(parts.next().unwrap_or_default());
            for part in parts {
                key.extend(ZERO);
                key.extend_from_slice(part);
            }
            key.extend(END);
        }
    }
    if order.descends {
        key[begin..].iter_mut().for_each(|byte| *byte = !*byte);
    }
}

/// An integer, by the float that is nearest to it.
fn put_integer(value: i128, nearest: f64, key: &mut Vec<u8>) {
    // The nearest float of a number below 2^64 is at most 2^64, and less than 2^11 away.
    let above = value - nearest as i128;
    put_number(nearest, above as i16, key);
}

fn put_number(float: f64, above: i16, key: &mut Vec<u8>) {
    const SIGN: u64 = 1 << 63;
    let bits = if float.is_nan() { f64::NAN.to_bits() & !SIGN } else { float.to_bits() };
    let ordered = if bits & SIGN == 0 { bits | SIGN } else { !bits };
    key.push(NUMBER);
    key.extend(ordered.to_be_bytes());
    key.extend((above as u16 ^ (1 << 15)).to_be_bytes());
}

/// The bytes of a signed integer of any length, most significant byte first, such that as [`Value::Text`] they have its order.
/// All integers of a column must have the same length.
pub fn of_signed(bytes: &[u8]) -> Vec<u8> {
    let mut flipped = bytes.to_vec();
    if let Some(first) = flipped.first_mut() {
        *first ^= 0x80;
    }
    flipped
}

/// The order of two rows of values, as that of their keys is.
pub fn compare(left: &[Value<'_>], right: &[Value<'_>], orders: &[Order]) -> Ordering {
    let key = |values: &[Value<'_>]| {
        let mut key = Vec::new();
        values.iter().zip(orders).for_each(|(value, order)| put(*value, *order, &mut key));
        key
    };
    key(left).cmp(&key(right))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As [`Value`], with its own text.
    #[derive(Debug, Clone)]
    enum Owned {
        Null,
        Bool(bool),
        Int(i64),
        Unsigned(u64),
        Float(f64),
        Text(Vec<u8>),
    }

    impl Owned {
        fn value(&self) -> Value<'_> {
            match self {
                Owned::Null => Value::Null,
                Owned::Bool(value) => Value::Bool(*value),
                Owned::Int(value) => Value::Int(*value),
                Owned::Unsigned(value) => Value::Unsigned(*value),
                Owned::Float(value) => Value::Float(*value),
                Owned::Text(text) => Value::Text(text),
            }
        }
    }

    /// An integer and a float, exactly: by whole numbers and what is behind the point.
    fn integer_to_float(integer: i128, float: f64) -> Ordering {
        if float.is_nan() || float >= 2e19 {
            return Ordering::Less;
        }
        if float <= -2e19 {
            return Ordering::Greater;
        }
        let behind = float - float.trunc();
        let sign = if float == 0.0 && float.is_sign_negative() { Ordering::Greater } else { Ordering::Equal };
        let fraction = 0.0_f64.partial_cmp(&behind).unwrap();
        integer.cmp(&(float.trunc() as i128)).then(fraction).then(sign)
    }

    fn floats(left: f64, right: f64) -> Ordering {
        match (left.is_nan(), right.is_nan()) {
            (false, false) => left.total_cmp(&right),
            (left, right) => left.cmp(&right),
        }
    }

    /// The order of two values that are no nulls, without their bytes.
    fn plain(left: &Owned, right: &Owned) -> Ordering {
        let integer = |value: &Owned| match value {
            Owned::Int(value) => Some(i128::from(*value)),
            Owned::Unsigned(value) => Some(i128::from(*value)),
            _ => None,
        };
        let rank = |value: &Owned| match value {
            Owned::Null => 0,
            Owned::Bool(_) => 1,
            Owned::Int(_) | Owned::Unsigned(_) | Owned::Float(_) => 2,
            Owned::Text(_) => 3,
        };
        match (left, right) {
            (Owned::Bool(left), Owned::Bool(right)) => left.cmp(right),
            (Owned::Text(left), Owned::Text(right)) => left.cmp(right),
            (Owned::Float(left), Owned::Float(right)) => floats(*left, *right),
            _ => match (integer(left), integer(right), left, right) {
                (Some(left), Some(right), ..) => left.cmp(&right),
                (Some(left), None, _, Owned::Float(right)) => integer_to_float(left, *right),
                (None, Some(right), Owned::Float(left), _) => integer_to_float(right, *left).reverse(),
                _ => rank(left).cmp(&rank(right)),
            },
        }
    }

    fn expected(left: &Owned, right: &Owned, order: Order) -> Ordering {
        let of_nulls = if order.nulls_first { Ordering::Less } else { Ordering::Greater };
        match (left, right) {
            (Owned::Null, Owned::Null) => Ordering::Equal,
            (Owned::Null, _) => of_nulls,
            (_, Owned::Null) => of_nulls.reverse(),
            _ if order.descends => plain(left, right).reverse(),
            _ => plain(left, right),
        }
    }

    fn float() -> impl Strategy<Value = f64> {
        prop_oneof![
            any::<u64>().prop_map(f64::from_bits),
            (-3_i64..3).prop_map(|half| half as f64 / 2.0),
            Just(-0.0),
            // Beside the largest integers that floats have all of, and beside the largest of 64 bits.
            (-4_i64..4).prop_map(|off| ((1_i64 << 53) + off) as f64),
            (0_u64..4).prop_map(|off| (u64::MAX - off * 2_048) as f64),
        ]
    }

    fn value() -> impl Strategy<Value = Owned> {
        prop_oneof![
            Just(Owned::Null),
            any::<bool>().prop_map(Owned::Bool),
            any::<i64>().prop_map(Owned::Int),
            (-3_i64..3).prop_map(Owned::Int),
            (-4_i64..4).prop_map(|off| Owned::Int((1 << 53) + off)),
            (-4_i64..4).prop_map(|off| Owned::Int(-(1 << 53) + off)),
            any::<u64>().prop_map(Owned::Unsigned),
            (0_u64..5_000).prop_map(|off| Owned::Unsigned(u64::MAX - off)),
            float().prop_map(Owned::Float),
            prop::collection::vec(prop_oneof![Just(0_u8), Just(1), Just(0xff), any::<u8>()], 0..4)
                .prop_map(Owned::Text),
        ]
    }

    fn order() -> impl Strategy<Value = Order> {
        (any::<bool>(), any::<bool>()).prop_map(|(descends, nulls_first)| Order { descends, nulls_first })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

        #[test]
        fn bytes_have_the_order_of_the_values(
            columns in prop::collection::vec((value(), value(), any::<bool>(), order()), 1..4)
        ) {
            // Columns in front are often equal, so that those behind them decide.
            let right = |(left, right, is_equal, _): &(Owned, Owned, bool, Order)| {
                if *is_equal { left.clone() } else { right.clone() }
            };
            let rights: Vec<Owned> = columns.iter().map(right).collect();
            let lefts: Vec<Value<'_>> = columns.iter().map(|column| column.0.value()).collect();
            let orders: Vec<Order> = columns.iter().map(|column| column.3).collect();
            let by_value = columns.iter().zip(&rights).fold(Ordering::Equal, |so_far, (column, right)| {
                so_far.then_with(|| expected(&column.0, right, column.3))
            });
            let right_values: Vec<Value<'_>> = rights.iter().map(Owned::value).collect();
            prop_assert_eq!(compare(&lefts, &right_values, &orders), by_value, "{:?} {:?}", columns, rights);
        }

        #[test]
        fn signed_bytes_have_the_order_of_their_integers(left in any::<i32>(), right in any::<i32>()) {
            let key = |value: i32| of_signed(&value.to_be_bytes());
            prop_assert_eq!(key(left).cmp(&key(right)), left.cmp(&right));
        }
    }

    #[test]
    fn bytes_are_as_the_table_says() {
        let bytes = |value, order| {
            let mut key = vec![7];
            put(value, order, &mut key);
            key
        };
        let (up, down) = (Order::default(), Order { descends: true, nulls_first: true });
        assert_eq!(bytes(Value::Null, up), [7, 0xff]);
        assert_eq!(bytes(Value::Null, down), [7, 0]);
        assert_eq!(bytes(Value::Bool(true), up), [7, 1, 1]);
        assert_eq!(bytes(Value::Int(1), up), [7, 2, 0xbf, 0xf0, 0, 0, 0, 0, 0, 0, 0x80, 0]);
        assert_eq!(bytes(Value::Int(1), up), bytes(Value::Float(1.0), up));
        assert_eq!(bytes(Value::Text(b"a\0"), up), [7, 3, b'a', 0, 0xff, 0, 0]);
        assert_eq!(bytes(Value::Text(b""), down), [7, !3, 0xff, 0xff]);
    }
}
