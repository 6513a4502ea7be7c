//! How values look in bytes: one form for each value, written by hand.
//!
//! Why not protobuf, which `wire` has for all other messages: a batch has millions of small records, for each of which protobuf
//! has a message, with a tag for each field, and prost a value on the heap. Here a record is two lengths and its bytes, and stays
//! where it lies ([`crate::records`]). The rest of the messages is small and follows the same rules, so that there is one set of
//! checks for all.
//!
//! | value | form |
//! |---|---|
//! | number | fixed, the most significant byte first; lengths and counts in groups of 7 bits, lowest first, as short as it can be |
//! | bytes, text, name | length, bytes |
//! | choice | a byte, and what belongs to it |
//! | what may be there | 0, or 1 and the value |
//! | list, set, map | count, and each element; those of sets and maps ascend, so that each value has one form and none is there twice |
//!
//! What is read is checked against what is left: no count or length makes room for more than the bytes that came can hold.

mod shuffle;

pub(crate) use shuffle::{choices, fields};

use crate::malformed::Malformed;
use bytes::{BufMut, Bytes};
use partage_core::base::id::{Epoch, Incarnation};
use partage_core::base::name::NodeId;
use partage_service::shuffle::records::{self, NotRecords};
use partage_service::shuffle::{AttemptId, Bytes as Shared, PoolSlot, RangeId, ShuffleId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// A value that has a form.
pub trait Form: Sized {
    /// What it is called in errors.
    const NAME: &'static str;
    /// The fewest bytes of one, at least 1.
    const LEAST: usize;
    /// Writes the form behind what `out` has.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads a value from the front, and moves behind it.
    ///
    /// # Errors
    /// There is none.
    fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed>;
}

/// What is left of bytes that are read.
#[derive(Debug)]
pub struct Cursor<'a> {
    bytes: &'a Bytes,
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Stands before the first byte of them.
    pub fn new(bytes: &'a Bytes) -> Cursor<'a> {
        Cursor { bytes, at: 0 }
    }

    /// How many are left.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next ones.
    ///
    /// # Errors
    /// There are fewer.
    pub fn bytes(&mut self, count: usize, what: &'static str) -> Result<&'a [u8], Malformed> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let taken = rest.get(..count).ok_or(Malformed::Ends(what))?;
        self.at += count;
        Ok(taken)
    }

    /// The next ones, as a part of all, which is not copied.
    ///
    /// # Errors
    /// There are fewer.
    pub fn part(&mut self, count: usize, what: &'static str) -> Result<Bytes, Malformed> {
        let begin = self.at;
        self.bytes(count, what)?;
        Ok(self.bytes.slice(begin..self.at))
    }

    /// A fixed number of bytes.
    ///
    /// # Errors
    /// There are fewer.
    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Malformed> {
        let bytes = self.bytes(N, what)?;
        bytes.first_chunk().copied().ok_or(Malformed::Ends(what))
    }

    /// A length or a count.
    ///
    /// # Errors
    /// There is none, or it is not written as it must be.
    pub fn number(&mut self, what: &'static str) -> Result<u64, Malformed> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let (value, length) = number(rest, what)?;
        self.at += length;
        Ok(value)
    }

    /// The length of something whose bytes follow.
    ///
    /// # Errors
    /// There are fewer bytes.
    pub fn length(&mut self, what: &'static str) -> Result<usize, Malformed> {
        let length = self.number(what)?;
        let fits = usize::try_from(length).ok().filter(|length| *length <= self.left());
        fits.ok_or(Malformed::Ends(what))
    }

    /// How many elements follow, of which each has at least so many bytes.
    ///
    /// # Errors
    /// There are fewer bytes.
    pub fn count(&mut self, what: &'static str, least: usize) -> Result<usize, Malformed> {
        let count = self.number(what)?;
        let fits = usize::try_from(count).ok().filter(|count| *count <= self.left() / least.max(1));
        fits.ok_or(Malformed::Count { what, count, bytes: self.left() })
    }

    /// Nothing is left.
    ///
    /// # Errors
    /// Something is.
    pub fn end(self) -> Result<(), Malformed> {
        match self.left() {
            0 => Ok(()),
            left => Err(Malformed::Rest(left)),
        }
    }
}

/// Reads one value, and nothing behind it.
///
/// # Errors
/// There is none, or something else too.
pub fn whole<T: Form>(bytes: &Bytes) -> Result<T, Malformed> {
    let mut from = Cursor::new(bytes);
    let value = T::take(&mut from)?;
    from.end()?;
    Ok(value)
}

pub use partage_service::shuffle::records::put_number;

/// The number at the front of bytes, and how many it has.
///
/// # Errors
/// There is none, or it has more bytes than it needs.
pub fn number(bytes: &[u8], what: &'static str) -> Result<(u64, usize), Malformed> {
    records::number(bytes).map_err(|why| match why {
        NotRecords::Number => Malformed::Number(what),
        _ => Malformed::Ends(what),
    })
}

/// Bytes with their length.
pub(crate) fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    put_number(bytes.len() as u64, out);
    out.put_slice(bytes);
}

macro_rules! fixed {
    ($($type:ty, $bytes:literal, $name:literal;)*) => {
        $(impl Form for $type {
            const NAME: &'static str = $name;
            const LEAST: usize = $bytes;
            fn put(&self, out: &mut Vec<u8>) {
                out.put_slice(&self.to_be_bytes());
            }
            fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
                from.array(Self::NAME).map(Self::from_be_bytes)
            }
        })*
    };
}

fixed! {
    u8, 1, "a byte";
    u16, 2, "a number of 2 bytes";
    u32, 4, "a number of 4 bytes";
    u64, 8, "a number of 8 bytes";
    u128, 16, "a number of 16 bytes";
}

macro_rules! around {
    ($($type:ident, $inner:ty, $name:literal;)*) => {
        $(impl Form for $type {
            const NAME: &'static str = $name;
            const LEAST: usize = <$inner as Form>::LEAST;
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }
            fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
                <$inner>::take(from).map($type)
            }
        })*
    };
}

around! {
    Epoch, u64, "an epoch";
    Incarnation, u64, "an incarnation";
    ShuffleId, u128, "a shuffle";
    AttemptId, u128, "an attempt";
    RangeId, u64, "a range";
    PoolSlot, u32, "a slot";
}

impl Form for bool {
    const NAME: &'static str = "yes or no";
    const LEAST: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
        match u8::take(from)? {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(Malformed::Choice { what: Self::NAME, found }),
        }
    }
}

impl Form for Shared {
    const NAME: &'static str = "bytes";
    const LEAST: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(self, out);
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let length = from.length(Self::NAME)?;
        Ok(from.bytes(length, Self::NAME)?.into())
    }
}

impl Form for NodeId {
    const NAME: &'static str = "the name of a node";
    // Its length, and one byte.
    const LEAST: usize = 2;
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(self.as_str().as_bytes(), out);
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let length = from.length(Self::NAME)?;
        let bytes = from.bytes(length, Self::NAME)?;
        let text = std::str::from_utf8(bytes).map_err(|_| Malformed::Value("a name that is not UTF-8"))?;
        NodeId::new(text).map_err(|why| Malformed::Name(why.to_string()))
    }
}

impl<T: Form> Form for Option<T> {
    const NAME: &'static str = T::NAME;
    const LEAST: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        self.iter().for_each(|value| value.put(out));
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
        bool::take(from)?.then(|| T::take(from)).transpose()
    }
}

impl<T: Form> Form for Arc<T> {
    const NAME: &'static str = T::NAME;
    const LEAST: usize = T::LEAST;
    fn put(&self, out: &mut Vec<u8>) {
        T::put(self, out);
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
        T::take(from).map(Arc::new)
    }
}

macro_rules! tuple {
    ($($type:ident $at:tt),*) => {
        impl<$($type: Form),*> Form for ($($type,)*) {
            const NAME: &'static str = "a pair";
            const LEAST: usize = 0 $(+ $type::LEAST)*;
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$at.put(out);)*
            }
            fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
                Ok(($($type::take(from)?,)*))
            }
        }
    };
}

tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);

impl<T: Form> Form for Vec<T> {
    const NAME: &'static str = T::NAME;
    const LEAST: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        put_number(self.len() as u64, out);
        self.iter().for_each(|one| one.put(out));
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let count = from.count(T::NAME, T::LEAST)?;
        let mut list = Vec::with_capacity(count);
        for _ in 0..count {
            list.push(T::take(from)?);
        }
        Ok(list)
    }
}

impl<T: Form> Form for VecDeque<T> {
    const NAME: &'static str = T::NAME;
    const LEAST: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        put_number(self.len() as u64, out);
        self.iter().for_each(|one| one.put(out));
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
        Vec::take(from).map(VecDeque::from)
    }
}

impl<T: Form + Ord> Form for BTreeSet<T> {
    const NAME: &'static str = T::NAME;
    const LEAST: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        put_number(self.len() as u64, out);
        self.iter().for_each(|one| one.put(out));
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let count = from.count(T::NAME, T::LEAST)?;
        let mut set = BTreeSet::new();
        for _ in 0..count {
            let one = T::take(from)?;
            if set.last().is_some_and(|last| *last >= one) {
                return Err(Malformed::Order(T::NAME));
            }
            set.insert(one);
        }
        Ok(set)
    }
}

impl<K: Form + Ord, V: Form> Form for BTreeMap<K, V> {
    const NAME: &'static str = K::NAME;
    const LEAST: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        put_number(self.len() as u64, out);
        self.iter().for_each(|(key, value)| {
            key.put(out);
            value.put(out);
        });
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let count = from.count(K::NAME, K::LEAST + V::LEAST)?;
        let mut map = BTreeMap::new();
        for _ in 0..count {
            let (key, value) = (K::take(from)?, V::take(from)?);
            if map.last_key_value().is_some_and(|(last, _)| *last >= key) {
                return Err(Malformed::Order(K::NAME));
            }
            map.insert(key, value);
        }
        Ok(map)
    }
}
