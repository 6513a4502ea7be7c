//! Commands on rows, from their arguments. Order and texts of the checks are those of Redis.

use super::rows::{Combine, ExpireWhen, ReadReply, Rows, Step, StepAction, WriteReply, key, number};
use crate::error::syntax;
use crate::reply::{Reply, shown};
use crate::request::Arguments;
use partage_core::limits::TTL_MS;
use partage_service::table::rows::{Action, Condition, Expiry};

/// A command on rows, or what is answered instead.
pub type Parsed = Result<Rows, Reply>;

/// A time that commands give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Unit {
    is_seconds: bool,
    is_absolute: bool,
}

const SECONDS: Unit = Unit { is_seconds: true, is_absolute: false };
const MILLISECONDS: Unit = Unit { is_seconds: false, is_absolute: false };
const AT_SECONDS: Unit = Unit { is_seconds: true, is_absolute: true };
const AT_MILLISECONDS: Unit = Unit { is_seconds: false, is_absolute: true };

impl Unit {
    /// The unit of the time behind this option; none: the option gives no time.
    fn of(option: &[u8]) -> Option<Unit> {
        match option.to_ascii_uppercase().as_slice() {
            b"EX" => Some(SECONDS),
            b"PX" => Some(MILLISECONDS),
            b"EXAT" => Some(AT_SECONDS),
            b"PXAT" => Some(AT_MILLISECONDS),
            _ => None,
        }
    }

    /// The time in milliseconds of Unix time; what is before its beginning, at its beginning.
    fn at_ms(self, time: i64, command: &str, now_ms: u64) -> Result<u64, Reply> {
        let now_ms = i64::try_from(now_ms).unwrap_or(i64::MAX);
        let time = if self.is_seconds { time.checked_mul(1_000) } else { Some(time) };
        let at = if self.is_absolute { time } else { time.and_then(|time| time.checked_add(now_ms)) };
        at.map(|at| at.max(0) as u64).ok_or_else(|| invalid_time(command))
    }

    /// When the row ends. A relative time counts by the clock of the leader, which may differ from `now_ms`.
    fn expiry(self, time: i64, command: &str, now_ms: u64) -> Result<Expiry, Reply> {
        let at_ms = self.at_ms(time, command, now_ms)?;
        if self.is_absolute {
            return Ok(Expiry::At(at_ms));
        }
        let time = if self.is_seconds { time.saturating_mul(1_000) } else { time };
        match time.max(0) as u64 {
            ttl_ms @ ..=TTL_MS => Ok(Expiry::After(ttl_ms)),
            _ => Err(invalid_time(command)),
        }
    }
}

fn invalid_time(command: &str) -> Reply {
    Reply::error(format_args!("invalid expire time in '{command}' command"))
}

fn lower(name: &[u8]) -> String {
    shown(&name.to_ascii_lowercase())
}

fn put(value: &[u8], expiry: Expiry) -> Action {
    Action::Put(value.into(), expiry)
}

fn write(of: &[u8], condition: Condition, action: Action, answer: WriteReply) -> Parsed {
    Ok(Rows::one(key(of)?, StepAction::Write { condition, action, answer }))
}

fn read(of: &[u8], read: ReadReply) -> Parsed {
    Ok(Rows::one(key(of)?, StepAction::Read(read)))
}

/// What stands behind the value of `SET`, and behind the key of `GETEX`.
#[derive(Default)]
struct Options {
    condition: Option<Condition>,
    wants_former: bool,
    keeps: bool,
    persists: bool,
    time: Option<(Unit, i64)>,
}

impl Options {
    fn read(arguments: Arguments<'_>, from: usize, is_set: bool) -> Result<Options, Reply> {
        let (mut options, mut at) = (Options::default(), from);
        let mut time = None;
        while at < arguments.len() {
            let option = arguments.get(at);
            let has_no_time = time.is_none() && !options.keeps && !options.persists;
            match option.to_ascii_uppercase().as_slice() {
                b"NX" if is_set && options.condition != Some(Condition::Present) => {
                    options.condition = Some(Condition::Absent);
                }
                b"XX" if is_set && options.condition != Some(Condition::Absent) => {
                    options.condition = Some(Condition::Present);
                }
                b"GET" if is_set => options.wants_former = true,
                b"KEEPTTL" if is_set && (has_no_time || options.keeps) => options.keeps = true,
                b"PERSIST" if !is_set && (has_no_time || options.persists) => options.persists = true,
                _ => {
                    let unit = Unit::of(option).filter(|unit| {
                        at + 1 < arguments.len()
                            && !options.keeps
                            && !options.persists
                            && time.is_none_or(|(former, _)| former == *unit)
                    });
                    at += 1;
                    time = Some((unit.ok_or_else(syntax)?, at));
                }
            }
            at += 1;
        }
        // A time that is no number is found after everything else.
        if let Some((unit, at)) = time {
            options.time = Some((unit, number(arguments.get(at))?));
        }
        Ok(options)
    }

    fn expiry(&self, command: &str, now_ms: u64) -> Result<Option<Expiry>, Reply> {
        match self.time {
            Some((_, ..=0)) => Err(invalid_time(command)),
            Some((unit, time)) => unit.expiry(time, command, now_ms).map(Some),
            None => Ok(None),
        }
    }
}

pub fn set(arguments: Arguments<'_>, now_ms: u64) -> Parsed {
    let options = Options::read(arguments, 3, true)?;
    let expiry = match options.expiry("set", now_ms)? {
        Some(expiry) => expiry,
        None if options.keeps => Expiry::AsBefore,
        None => Expiry::Never,
    };
    let answer = if options.wants_former { WriteReply::Former } else { WriteReply::Ok };
    let condition = options.condition.unwrap_or(Condition::Always);
    let value = arguments.get(2);
    let action = match expiry {
        Expiry::Never => Action::Overwrite(value.into()),
        _ => put(value, expiry),
    };
    write(arguments.get(1), condition, action, answer)
}

pub fn setnx(arguments: Arguments<'_>, _: u64) -> Parsed {
    let action = put(arguments.get(2), Expiry::Never);
    write(arguments.get(1), Condition::Absent, action, WriteReply::Flag)
}

/// `SETEX` and `PSETEX`, whose time to live is in seconds or milliseconds.
pub fn setex(arguments: Arguments<'_>, now_ms: u64) -> Parsed {
    let command = lower(arguments.get(0));
    let unit = if command == "setex" { SECONDS } else { MILLISECONDS };
    let time = number(arguments.get(2))?;
    if time <= 0 {
        return Err(invalid_time(&command));
    }
    let expiry = unit.expiry(time, &command, now_ms)?;
    write(arguments.get(1), Condition::Always, put(arguments.get(3), expiry), WriteReply::Ok)
}

pub fn getset(arguments: Arguments<'_>, _: u64) -> Parsed {
    let action = put(arguments.get(2), Expiry::Never);
    write(arguments.get(1), Condition::Always, action, WriteReply::Former)
}

pub fn get(arguments: Arguments<'_>, _: u64) -> Parsed {
    read(arguments.get(1), ReadReply::Value)
}

pub fn getdel(arguments: Arguments<'_>, _: u64) -> Parsed {
    write(arguments.get(1), Condition::Always, Action::Delete, WriteReply::Former)
}

pub fn getex(arguments: Arguments<'_>, now_ms: u64) -> Parsed {
    let options = Options::read(arguments, 2, false)?;
    let expiry = match options.expiry("getex", now_ms)? {
        Some(expiry) => expiry,
        None if options.persists => Expiry::Never,
        None => return read(arguments.get(1), ReadReply::Value),
    };
    write(arguments.get(1), Condition::Always, Action::Expire(expiry), WriteReply::Former)
}

pub fn strlen(arguments: Arguments<'_>, _: u64) -> Parsed {
    read(arguments.get(1), ReadReply::Length)
}

pub fn getrange(arguments: Arguments<'_>, _: u64) -> Parsed {
    let (from, to) = (number(arguments.get(2))?, number(arguments.get(3))?);
    read(arguments.get(1), ReadReply::Part(from, to))
}

pub fn append(arguments: Arguments<'_>, _: u64) -> Parsed {
    let action = Action::Append(arguments.get(2).into());
    write(arguments.get(1), Condition::Always, action, WriteReply::Length)
}

fn add(of: &[u8], by: i64) -> Parsed {
    write(of, Condition::Always, Action::Add(by), WriteReply::Number)
}

pub fn incr(arguments: Arguments<'_>, _: u64) -> Parsed {
    add(arguments.get(1), 1)
}

pub fn decr(arguments: Arguments<'_>, _: u64) -> Parsed {
    add(arguments.get(1), -1)
}

pub fn incrby(arguments: Arguments<'_>, _: u64) -> Parsed {
    add(arguments.get(1), number(arguments.get(2))?)
}

pub fn decrby(arguments: Arguments<'_>, _: u64) -> Parsed {
    let by = number(arguments.get(2))?;
    add(arguments.get(1), by.checked_neg().ok_or_else(|| Reply::error("decrement would overflow"))?)
}

fn several(arguments: Arguments<'_>, combine: Combine, does: impl Fn() -> StepAction) -> Parsed {
    let step = |of| Ok(Step { key: key(of)?, does: does() });
    let steps = arguments.from(1).map(step).collect::<Result<Vec<_>, Reply>>()?;
    Ok(Rows { steps, combine })
}

pub fn mget(arguments: Arguments<'_>, _: u64) -> Parsed {
    several(arguments, Combine::All, || StepAction::Read(ReadReply::Value))
}

/// `EXISTS`, and `TOUCH`, since rows have no time of their last use.
pub fn exists(arguments: Arguments<'_>, _: u64) -> Parsed {
    several(arguments, Combine::Sum, || StepAction::Read(ReadReply::Exists))
}

/// `DEL`, and `UNLINK`, since no row is so large that its removal takes time.
pub fn del(arguments: Arguments<'_>, _: u64) -> Parsed {
    several(arguments, Combine::Sum, || StepAction::Write {
        condition: Condition::Always,
        action: Action::Delete,
        answer: WriteReply::Existed,
    })
}

/// `MSET` and `MSETNX`. Of a key that is given twice the last value counts.
pub fn mset(arguments: Arguments<'_>, _: u64) -> Parsed {
    let command = lower(arguments.get(0));
    if arguments.len().is_multiple_of(2) {
        return Err(Reply::error(format_args!("wrong number of arguments for '{command}' command")));
    }
    let (condition, combine) = match command == "msetnx" {
        true => (Condition::Absent, Combine::Flag),
        false => (Condition::Always, Combine::Ok),
    };
    let mut steps = std::collections::BTreeMap::new();
    for at in (1..arguments.len()).step_by(2) {
        let action = Action::Overwrite(arguments.get(at + 1).into());
        steps
            .insert(key(arguments.get(at))?, StepAction::Write { condition, action, answer: WriteReply::Ok });
    }
    Ok(Rows { steps: steps.into_iter().map(|(key, does)| Step { key, does }).collect(), combine })
}

/// `EXPIRE`, `PEXPIRE`, `EXPIREAT`, `PEXPIREAT`.
pub fn expire(arguments: Arguments<'_>, now_ms: u64) -> Parsed {
    let command = lower(arguments.get(0));
    let unit = Unit { is_seconds: !command.starts_with('p'), is_absolute: command.ends_with("at") };
    let mut when = ExpireWhen::default();
    for option in arguments.from(3) {
        match option.to_ascii_uppercase().as_slice() {
            b"NX" => when.is_none = true,
            b"XX" => when.is_some = true,
            b"GT" => when.is_later = true,
            b"LT" => when.is_earlier = true,
            _ => return Err(Reply::error(format_args!("Unsupported option {}", shown(option)))),
        }
    }
    if when.is_none && (when.is_some || when.is_later || when.is_earlier) {
        let text = "NX and XX, GT or LT options at the same time are not compatible";
        return Err(Reply::error(text));
    }
    if when.is_later && when.is_earlier {
        return Err(Reply::error("GT and LT options at the same time are not compatible"));
    }
    let time = number(arguments.get(2))?;
    let (at_ms, expiry) = (unit.at_ms(time, &command, now_ms)?, unit.expiry(time, &command, now_ms)?);
    Ok(Rows::one(key(arguments.get(1))?, StepAction::ExpireIf { at_ms, expiry, when }))
}

pub fn persist(arguments: Arguments<'_>, _: u64) -> Parsed {
    write(arguments.get(1), Condition::Always, Action::Expire(Expiry::Never), WriteReply::HadEnd)
}

pub fn ttl(arguments: Arguments<'_>, _: u64) -> Parsed {
    read(arguments.get(1), ReadReply::Seconds)
}

pub fn pttl(arguments: Arguments<'_>, _: u64) -> Parsed {
    read(arguments.get(1), ReadReply::Milliseconds)
}

pub fn expiretime(arguments: Arguments<'_>, _: u64) -> Parsed {
    read(arguments.get(1), ReadReply::EndsSeconds)
}

pub fn pexpiretime(arguments: Arguments<'_>, _: u64) -> Parsed {
    read(arguments.get(1), ReadReply::EndsMilliseconds)
}

pub fn kind(arguments: Arguments<'_>, _: u64) -> Parsed {
    read(arguments.get(1), ReadReply::Type)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_000_000;

    fn expiry(unit: Unit, time: i64) -> Option<Expiry> {
        unit.expiry(time, "set", NOW_MS).ok()
    }

    #[test]
    fn relative_times_are_the_leader_s_to_count_and_absolute_ones_stay() {
        assert_eq!(expiry(SECONDS, 5), Some(Expiry::After(5_000)));
        assert_eq!(expiry(MILLISECONDS, 5), Some(Expiry::After(5)));
        assert_eq!(expiry(SECONDS, -5), Some(Expiry::After(0)));
        assert_eq!(expiry(AT_SECONDS, 5), Some(Expiry::At(5_000)));
        assert_eq!(expiry(AT_MILLISECONDS, 5), Some(Expiry::At(5)));
    }

    #[test]
    fn a_time_to_live_has_the_bound_of_all_doors() {
        let most = TTL_MS as i64;
        assert_eq!(expiry(MILLISECONDS, most), Some(Expiry::After(TTL_MS)));
        assert_eq!(expiry(MILLISECONDS, most + 1), None);
        assert_eq!(expiry(SECONDS, most / 1_000 + 1), None);
        assert_eq!(expiry(AT_MILLISECONDS, i64::MAX), Some(Expiry::At(i64::MAX as u64)));
    }
}
