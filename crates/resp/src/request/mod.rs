//! Requests from bytes: arrays of strings, and inline commands.
//!
//! The parser is called with all bytes since the beginning of a command, goes on where it stopped, and keeps only places in
//! them. So nothing is copied, nothing is read twice, and the result does not depend on how the bytes were cut on their way.
//! What a client announces takes no memory before it comes. A command beyond the limits is read to its end and dropped, so that
//! the client gets an error for it and goes on; only what cannot be a request ends the connection, with Redis' words.
//!
//! A library reads this (`resp-rs`), but for our purpose not well: its limits are fixed (512 MiB, ten million elements), it
//! begins anew for each piece of a request, and it has no inline commands. Tests compare the two.

use crate::inline;
use crate::limits;

/// Why a connection cannot go on. The texts are those of Redis.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The number of arguments is no number, or beyond all limits.
    #[error("Protocol error: invalid multibulk length")]
    Count,
    /// The length of an argument is no number, negative, or beyond all limits.
    #[error("Protocol error: invalid bulk length")]
    Length,
    /// An argument does not begin as one.
    #[error("Protocol error: expected '$', got '{}'", .0.escape_ascii())]
    NoString(u8),
    /// An argument is not followed by CR LF.
    #[error("Protocol error: a string is longer than its length says")]
    NoEnd,
    /// A line with a length or a count does not end.
    #[error("Protocol error: too big count string")]
    LongLine,
    /// An inline command does not end.
    #[error("Protocol error: too big inline request")]
    LongInline,
    /// The quotes of an inline command do not match.
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
}

/// Why a command was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TooMuch {
    /// The command has too many arguments.
    #[error("the command has {0} arguments and may have {max}: send several", max = limits::ARGUMENTS)]
    Arguments(u64),
    /// The command has too many bytes.
    #[error("the command is longer than {max} bytes: send several, or store the value in parts", max = limits::COMMAND_BYTES)]
    Bytes,
    /// The node has no memory for it.
    #[error("too many bytes of requests are under way on this node, and nothing was done: try again")]
    Budget,
}

/// What the bytes are so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed {
    /// More must come. So many of the bytes are of no use any more.
    Incomplete {
        /// The caller drops so many from the front.
        drop: usize,
    },
    /// No command, in so many bytes: an empty line or array.
    Nothing(usize),
    /// A command in so many bytes; [`Parser::arguments`] has it.
    Command(usize),
    /// The end of a command that was dropped, after so many bytes.
    Dropped(usize, TooMuch),
}

/// The arguments of a command, its name among them.
#[derive(Debug, Clone, Copy)]
pub struct Arguments<'a> {
    bytes: &'a [u8],
    places: &'a [(usize, usize)],
}

impl<'a> Arguments<'a> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// The argument at that place; empty if there is none.
    pub fn get(&self, at: usize) -> &'a [u8] {
        self.places.get(at).map_or(&[], |(from, to)| &self.bytes[*from..*to])
    }

    /// Those from that place on.
    pub fn from(&self, at: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        self.places.iter().skip(at).map(move |(from, to)| &bytes[*from..*to])
    }

    /// A copy that can be kept.
    pub fn to_owned(self) -> OwnedArguments {
        let mut bytes = Vec::with_capacity(self.from(0).map(<[u8]>::len).sum());
        let places = self.from(0).map(|argument| {
            let from = bytes.len();
            bytes.extend_from_slice(argument);
            (from, bytes.len())
        });
        OwnedArguments { places: places.collect(), bytes }
    }
}

/// Arguments that are kept.
#[derive(Debug, Clone, Default)]
pub struct OwnedArguments {
    bytes: Vec<u8>,
    places: Vec<(usize, usize)>,
}

impl OwnedArguments {
    /// Arguments that are these words.
    #[cfg(test)]
    pub fn of(words: &[&[u8]]) -> OwnedArguments {
        let mut arguments = OwnedArguments::default();
        for word in words {
            let from = arguments.bytes.len();
            arguments.bytes.extend_from_slice(word);
            arguments.places.push((from, arguments.bytes.len()));
        }
        arguments
    }

    /// The arguments, borrowed, for code that only reads them.
    pub fn as_arguments(&self) -> Arguments<'_> {
        Arguments { bytes: &self.bytes, places: &self.places }
    }

    /// What they take in memory.
    pub fn bytes(&self) -> usize {
        self.bytes.len() + self.places.len() * size_of::<(usize, usize)>()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// At the first byte.
    Begin,
    /// At the line with the length of an argument.
    Length,
    /// At an argument of so many bytes, with the CR LF behind it.
    Argument(usize),
    /// At the end of the command, which the caller has not taken yet.
    Complete,
}

/// Reads one command after the other.
#[derive(Debug)]
pub struct Parser {
    state: State,
    /// Up to here the bytes are read.
    at: usize,
    /// Arguments that are still to come.
    left: u64,
    places: Vec<(usize, usize)>,
    /// The arguments of an inline command, without their quotes.
    inline: Option<Vec<u8>>,
    dropped: Option<TooMuch>,
}

impl Default for Parser {
    fn default() -> Parser {
        let (places, inline, dropped) = (Vec::new(), None, None);
        Parser { state: State::Begin, at: 0, left: 0, places, inline, dropped }
    }
}

impl Parser {
    /// Reads on. `input` begins with the command that was begun; after [`Parser::next_command`], with the next one.
    ///
    /// # Errors
    /// What has come can be no request.
    pub fn parse(&mut self, input: &[u8]) -> Result<Parsed, ProtocolError> {
        loop {
            match self.state {
                State::Begin if input.is_empty() => return Ok(Parsed::Incomplete { drop: 0 }),
                State::Begin if input[0] != b'*' => return self.inline(input),
                State::Begin => match line(&input[1..])? {
                    None => return Ok(Parsed::Incomplete { drop: 0 }),
                    Some((text, length)) => {
                        let count = number(text).ok_or(ProtocolError::Count)?;
                        self.at = 1 + length;
                        let Ok(count @ 1..) = u64::try_from(count) else {
                            return Ok(Parsed::Nothing(self.at));
                        };
                        if count > limits::ANNOUNCED_ARGUMENTS {
                            return Err(ProtocolError::Count);
                        }
                        if count > limits::ARGUMENTS as u64 {
                            self.dropped = Some(TooMuch::Arguments(count));
                        }
                        (self.left, self.state) = (count, State::Length);
                    }
                },
                State::Length => match self.length(input)? {
                    false => return Ok(self.incomplete()),
                    true => continue,
                },
                State::Argument(bytes) => {
                    if !self.argument(input, bytes)? {
                        return Ok(self.incomplete());
                    }
                }
                State::Complete => {
                    return Ok(match self.dropped {
                        Some(why) => Parsed::Dropped(self.at, why),
                        None => Parsed::Command(self.at),
                    });
                }
            }
        }
    }

    /// The command that was read, in the bytes that were given to [`Parser::parse`].
    pub fn arguments<'a>(&'a self, input: &'a [u8]) -> Arguments<'a> {
        Arguments { bytes: self.inline.as_deref().unwrap_or(input), places: &self.places }
    }

    /// The command is dealt with.
    pub fn next_command(&mut self) {
        (self.state, self.at, self.inline, self.dropped) = (State::Begin, 0, None, None);
        self.places.clear();
    }

    /// Whether a command has begun and is not complete.
    pub fn has_begun(&self) -> bool {
        !matches!(self.state, State::Begin | State::Complete)
    }

    /// The rest of the command that has begun is to be dropped.
    pub fn drop_command(&mut self, why: TooMuch) {
        self.dropped.get_or_insert(why);
        self.places.clear();
    }

    /// What was read of a command that is dropped is of no use.
    fn incomplete(&mut self) -> Parsed {
        let drop = if self.dropped.is_some() { std::mem::take(&mut self.at) } else { 0 };
        Parsed::Incomplete { drop }
    }

    fn length(&mut self, input: &[u8]) -> Result<bool, ProtocolError> {
        match input.get(self.at) {
            None => return Ok(false),
            Some(b'$') => {}
            Some(other) => return Err(ProtocolError::NoString(*other)),
        }
        let Some((text, length)) = line(&input[self.at + 1..])? else { return Ok(false) };
        let bytes = number(text).and_then(|bytes| u64::try_from(bytes).ok()).ok_or(ProtocolError::Length)?;
        if bytes > limits::ANNOUNCED_BYTES {
            return Err(ProtocolError::Length);
        }
        self.at += 1 + length;
        let bytes = bytes as usize;
        if self.at + bytes > limits::COMMAND_BYTES && self.dropped.is_none() {
            self.drop_command(TooMuch::Bytes);
        }
        self.state = State::Argument(bytes);
        Ok(true)
    }

    fn argument(&mut self, input: &[u8], bytes: usize) -> Result<bool, ProtocolError> {
        let there = input.len() - self.at;
        if self.dropped.is_some() && there < bytes {
            self.at += there;
            self.state = State::Argument(bytes - there);
            return Ok(false);
        }
        if there < bytes + 2 {
            return Ok(false);
        }
        let end = self.at + bytes;
        if input[end..end + 2] != *b"\r\n" {
            return Err(ProtocolError::NoEnd);
        }
        if self.dropped.is_none() {
            self.places.push((self.at, end));
        }
        self.at = end + 2;
        self.left -= 1;
        self.state = if self.left == 0 { State::Complete } else { State::Length };
        Ok(true)
    }

    fn inline(&mut self, input: &[u8]) -> Result<Parsed, ProtocolError> {
        let looked = &input[..input.len().min(limits::LINE_BYTES)];
        let Some(end) = looked.iter().position(|byte| *byte == b'\n') else {
            let is_long = looked.len() == limits::LINE_BYTES;
            return if is_long { Err(ProtocolError::LongInline) } else { Ok(Parsed::Incomplete { drop: 0 }) };
        };
        let text = looked[..end].strip_suffix(b"\r").unwrap_or(&looked[..end]);
        self.at = end + 1;
        let mut words = Vec::new();
        inline::split(text, &mut words, &mut self.places).ok_or(ProtocolError::Quotes)?;
        if self.places.is_empty() {
            return Ok(Parsed::Nothing(self.at));
        }
        if self.places.len() > limits::ARGUMENTS {
            self.dropped = Some(TooMuch::Arguments(self.places.len() as u64));
        }
        (self.inline, self.state) = (Some(words), State::Complete);
        Ok(if let Some(why) = self.dropped {
            Parsed::Dropped(self.at, why)
        } else {
            Parsed::Command(self.at)
        })
    }
}

/// The line that `input` begins with, and its length with the CR LF; none if it is not there yet.
fn line(input: &[u8]) -> Result<Option<(&[u8], usize)>, ProtocolError> {
    /// Longer than any number that is taken.
    const LONGEST: usize = 32;
    let looked = &input[..input.len().min(LONGEST)];
    match looked.iter().position(|byte| *byte == b'\r') {
        Some(end) if end + 1 == input.len() => Ok(None),
        Some(end) => match input[end + 1] {
            b'\n' => Ok(Some((&input[..end], end + 2))),
            _ => Err(ProtocolError::LongLine),
        },
        None if looked.len() == LONGEST => Err(ProtocolError::LongLine),
        None => Ok(None),
    }
}

/// A decimal number as Redis reads it: no sign but `-`, no zeros that could be left out.
pub fn number(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let is_plain = match digits {
        [b'0'] => !is_negative,
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if !is_plain {
        return None;
    }
    digits.iter().try_fold(0_i64, |sum, digit| {
        let (sum, digit) = (sum.checked_mul(10)?, i64::from(digit - b'0'));
        if is_negative { sum.checked_sub(digit) } else { sum.checked_add(digit) }
    })
}

#[cfg(test)]
mod tests;
