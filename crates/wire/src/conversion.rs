//! Conversions that JSON and protobuf share: each is written once, for the forms of both.
//!
//! Forms of both languages have mostly the same fields, with the same names and types: [`into_forms`] writes them and
//! [`from_forms`] reads them. They differ in how a message is in a field, JSON's is there and protobuf's may be missing
//! ([`Given`], [`Field`]), in names that may be missing ([`OptionalName`]), and in words of fixed lists, which protobuf numbers
//! ([`Numbered`]).

use crate::json::{self, ChangeProgress, FixedWord, PlanOrigin, PlanStatus, ReplicaPhase, ShardStage, Words};
use crate::malformed::{Inside, required};
use crate::{Malformed, proto};
use partage_core::cluster::moves::MoveStage;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::Role;
use partage_core::node::Health;
use partage_core::node::exchange::DropReason;
use std::fmt::Display;

/// `from_forms!(form: [json::Peer, proto::Peer] => Peer { shard: ShardId(form.shard) })` implements `TryFrom` of each form for
/// core's type. The value of a field may end in `?`.
macro_rules! from_forms {
    ($form:ident: [$($source:ty),+] => $core:ident $fields:tt) => {
        $(
            impl TryFrom<$source> for $core {
                type Error = $crate::Malformed;
                fn try_from($form: $source) -> Result<Self, $crate::Malformed> {
                    Ok($core $fields)
                }
            }
        )+
    };
}
pub(crate) use from_forms;

/// `into_forms!(peer: &Peer => [json::Peer, proto::Peer] { shard: peer.shard.0 })` implements `From` of a reference to core's
/// type for each form.
macro_rules! into_forms {
    ($value:ident: &$core:ty => [$($form:ty),+] $fields:tt) => {
        $(
            impl From<&$core> for $form {
                fn from($value: &$core) -> Self {
                    Self $fields
                }
            }
        )+
    };
}
pub(crate) use into_forms;

/// Reads a message that must be in a field.
pub(crate) trait Given<T> {
    /// The value of the field.
    fn given(self, field: &str) -> Result<T, Malformed>;
}

impl<F, T: TryFrom<F, Error = Malformed>> Given<T> for Option<F> {
    fn given(self, field: &str) -> Result<T, Malformed> {
        required(self, field)
    }
}

/// Writes a value into a field: a message, a word or a count.
pub(crate) trait Field<T> {
    /// The field with that value.
    fn of(value: T) -> Self;
}

impl<T, F: From<T>> Field<T> for Option<F> {
    fn of(value: T) -> Self {
        Some(value.into())
    }
}

macro_rules! fields_of_json {
    ($($form:ident),+) => {
        $(
            impl<T: TryFrom<json::$form, Error = Malformed>> Given<T> for json::$form {
                fn given(self, field: &str) -> Result<T, Malformed> {
                    T::try_from(self).inside(field)
                }
            }

            impl<T> Field<T> for json::$form
            where
                json::$form: From<T>,
            {
                fn of(value: T) -> Self {
                    value.into()
                }
            }
        )+
    };
}

fields_of_json!(Bounds, Constraint, Generation, ReplicaKey, ShardCounts);

impl<T> Field<T> for FixedWord<T> {
    fn of(value: T) -> Self {
        value.into()
    }
}

impl<T: Numbered> Field<T> for i32 {
    fn of(value: T) -> Self {
        value.number()
    }
}

impl<T: Words> Field<T> for String {
    fn of(value: T) -> Self {
        value.word()
    }
}

impl Field<usize> for usize {
    fn of(value: usize) -> Self {
        value
    }
}

impl Field<usize> for u64 {
    fn of(value: usize) -> Self {
        value as u64
    }
}

impl Field<&Vec<String>> for Vec<String> {
    fn of(value: &Vec<String>) -> Self {
        value.clone()
    }
}

impl Field<&Vec<String>> for proto::Sentences {
    fn of(value: &Vec<String>) -> Self {
        proto::Sentences { sentences: value.clone() }
    }
}

/// Writes a name that may be missing into a field: JSON leaves it out, and protobuf has an empty text.
pub(crate) trait OptionalName {
    /// The field with that name.
    fn of(name: Option<&impl Display>) -> Self;
}

impl OptionalName for Option<String> {
    fn of(name: Option<&impl Display>) -> Self {
        name.map(ToString::to_string)
    }
}

impl OptionalName for String {
    fn of(name: Option<&impl Display>) -> Self {
        name.map_or(String::new(), ToString::to_string)
    }
}

/// A word of a fixed list, as protobuf numbers it.
pub(crate) trait Numbered: Sized {
    /// The number of the word.
    fn number(self) -> i32;

    /// The word with that number; none where no word is meant, or one of a later version.
    fn of_number(number: i32) -> Option<Self>;

    /// The word in a field.
    fn in_field(number: i32, field: &str) -> Result<Self, Malformed> {
        Self::of_number(number).ok_or_else(|| match number {
            0 => Malformed::new(field, "is missing"),
            _ => Malformed::new(field, prost::UnknownEnumValue(number)),
        })
    }
}

macro_rules! numbered {
    ($($word:ident = $numbers:ident $(but $none:ident)? { $($value:ident),+ $(,)? })+) => {
        $(
            impl Numbered for $word {
                fn number(self) -> i32 {
                    match self {
                        $($word::$value => proto::$numbers::$value.into(),)+
                    }
                }

                fn of_number(number: i32) -> Option<$word> {
                    match proto::$numbers::try_from(number).ok()? {
                        $(proto::$numbers::$value => Some($word::$value),)+
                        $(proto::$numbers::$none => None,)?
                    }
                }
            }
        )+
    };
}

numbered! {
    ChangeProgress = ProgressKind { Waiting, Started, Done, Dropped }
    DropReason = DropReason but Unspecified { Moved, Deleted, Superseded }
    Health = Health but Unspecified { Unknown, Up, Suspect, Unreachable, Down, Left }
    MoveStage = MoveStage but Unspecified { Loading, HandingOver, Dropping }
    PlanOrigin = OriginKind but Unspecified { Repair, Drain, Rebalance, Person }
    PlanStatus = PlanStatus but Unspecified { Suggested, Approved, Finished, Rejected, Superseded, Refused }
    ReplicaPhase = PhaseKind but Unspecified {
        Loading, Ready, Serving, Unloading, Unloaded, Kept, Dropped, Failed,
    }
    ReplicaState = ReplicaState but Unspecified { Load, Live, Unload, UnloadFinal }
    Role = Role but Unspecified { Leader, Follower, ReadReplica }
    ShardStage = StageKind { Serving, Forming, Closing, Removing }
}
