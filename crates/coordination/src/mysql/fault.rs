//! Failures between us and the server, and whether a commit can have happened.
//!
//! A server that answers with an error before `COMMIT` has changed nothing. One that does not answer a `COMMIT`
//! may have done it, or may do it yet. All else here follows from that.

use std::time::Duration;

use sqlx::mysql::MySqlDatabaseError;

use crate::error::Error;

/// Why one attempt failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// Nothing happened, and it may go well the next time.
    Passing(String),
    /// Nothing happened; the connection is gone, and with it perhaps all others to that server.
    Broken(String),
    /// There is no further attempt: the caller gets this error.
    Final(Error),
}

/// The outcome of one attempt.
pub(super) type Attempt<T> = Result<T, Fault>;

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

impl Fault {
    /// When there is no further attempt.
    pub fn into_error(self) -> Error {
        match self {
            Self::Passing(what) | Self::Broken(what) => Error::Unavailable { what },
            Self::Final(error) => error,
        }
    }
}

/// An error or missing answer of the server.
#[derive(Debug)]
pub(super) enum AnswerError {
    /// It answered, with an error.
    Said { number: u16, words: String },
    /// Nothing came, or nothing that can be understood.
    Nothing(String),
    /// Nothing came in time.
    Late(Duration),
}

impl From<sqlx::Error> for AnswerError {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Database(said) => match said.try_downcast_ref::<MySqlDatabaseError>() {
                Some(said) => Self::Said { number: said.number(), words: said.message().to_owned() },
                None => Self::Nothing(error.to_string()),
            },
            _ => Self::Nothing(error.to_string()),
        }
    }
}

/// Deadlock; lock wait timeout; record changed since read; a Galera node that is not in step.
const LOST_A_RACE: [u16; 4] = [1213, 1205, 1020, 1047];

/// The server shuts down, or has ended our connection: an idle one, or by a person.
const GOING: [u16; 5] = [1053, 1317, 1927, 4031, 1158];

/// Set read-only, as replicas are; a transaction that was; the option that makes it so.
const READ_ONLY: [u16; 3] = [1290, 1792, 1836];

/// No rights: to the database, wrong password, to a table, to a column, privileges, by socket only, host not allowed.
const DENIED: [u16; 8] = [1044, 1045, 1142, 1143, 1227, 1698, 1130, 1251];

/// Disk full; table full; no room for what a transaction would have to undo. Each of a statement that did nothing.
const FULL: [u16; 3] = [1021, 1114, 1637];

/// An error of the storage engine. It names the system's own.
const OF_STORAGE: u16 = 1030;

/// Errors in writing a file, of the server and of its library. They name the system's own.
const OF_WRITING: [u16; 2] = [1026, 3];

/// No space left; a quota is used up; a file may not grow any more. By the numbers of Linux.
const NO_SPACE: [u32; 3] = [28, 122, 27];

/// Whether a statement failed for want of room. The storage engine has rolled it back.
fn is_full(number: u16, words: &str) -> bool {
    FULL.contains(&number) || (number == OF_STORAGE && names_no_space(words))
}

/// Whether `words` name one of the system's errors that mean that there is no room: `Got error 28 "No space left on
/// device" from storage engine`, `(errno: 28 "…")`, `(Errcode: 28 "…")`.
fn names_no_space(words: &str) -> bool {
    ["error ", "errno: ", "Errcode: "].iter().any(|mark| {
        let Some((_, after)) = words.split_once(mark) else { return false };
        let digits = after.split(|char: char| !char.is_ascii_digit()).next().unwrap_or_default();
        digits.parse().is_ok_and(|number| NO_SPACE.contains(&number))
    })
}

fn no_room(number: u16, words: &str, location: &str) -> Error {
    Error::NoRoom {
        location: location.to_owned(),
        what: format!("{words} (error {number}): free some space for the server"),
    }
}

impl AnswerError {
    /// The error when it is certain that nothing happened. `location` names the target.
    pub fn nothing_happened(self, location: &str) -> Fault {
        let (number, words) = match self {
            Self::Nothing(words) => return Fault::Broken(format!("{location}: {words}")),
            // A retry would only wait as long again.
            Self::Late(bound) => {
                return Fault::Final(Error::Unavailable {
                    what: format!("{location}: no answer within {bound:?}"),
                });
            }
            Self::Said { number, words } => (number, words),
        };
        let said = format!("{location}: the server says {number}: {words}");
        if LOST_A_RACE.contains(&number) {
            return Fault::Passing(said);
        }
        if GOING.contains(&number) {
            return Fault::Broken(said);
        }
        Fault::Final(if READ_ONLY.contains(&number) {
            Error::Unavailable { what: format!("{said}; a replica takes no changes: name the primary first") }
        } else if DENIED.contains(&number) {
            Error::Denied {
                location: location.to_owned(),
                what: format!(
                    "{words} (error {number}); it takes the right user and password, TLS where the user has \
                     REQUIRE SSL, and GRANT SELECT, INSERT, UPDATE, DELETE, CREATE on the database"
                ),
            }
        } else if number == 1049 {
            let what = format!("{words} (error {number}); make it with CREATE DATABASE");
            Error::Denied { location: location.to_owned(), what }
        } else if is_full(number, &words) || (OF_WRITING.contains(&number) && names_no_space(&words)) {
            no_room(number, &words, location)
        } else {
            Error::Unavailable { what: said }
        })
    }

    /// The error of a statement that commits by itself. Without room the statement does nothing, and there is nothing
    /// to commit. After a failure to write a file the outcome is unknown: it may have been the commit's.
    pub fn of_statement(self, location: &str) -> Fault {
        match self {
            Self::Said { number, words } if is_full(number, &words) => {
                Fault::Final(no_room(number, &words, location))
            }
            other => other.of_commit(location),
        }
    }

    /// The error of a `COMMIT`.
    pub fn of_commit(self, location: &str) -> Fault {
        match self {
            // The server gives these only after a rollback.
            Self::Said { number, words } if LOST_A_RACE.contains(&number) => {
                Fault::Passing(format!("{location}: the server says {number}: {words}"))
            }
            Self::Said { number, words } => {
                let what = format!("{location}: the server says {number} to a commit: {words}");
                Fault::Final(Error::Indefinite { what })
            }
            Self::Nothing(words) => Fault::Final(Error::Indefinite {
                what: format!("{location}: no answer to a commit: {words}"),
            }),
            Self::Late(bound) => {
                let what = format!("{location}: no answer to a commit within {bound:?}");
                Fault::Final(Error::Indefinite { what })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(number: u16, words: &str) -> AnswerError {
        AnswerError::Said { number, words: words.to_owned() }
    }

    fn is_no_room(fault: &Fault) -> bool {
        matches!(fault, Fault::Final(error @ Error::NoRoom { location, .. })
            if location == "mysql://h/r" && error.is_definite())
    }

    /// The words are those of MariaDB's and MySQL's own lists of errors.
    #[test]
    fn c14_every_word_for_no_room_is_understood() {
        let of_the_statement = [
            (
                1021,
                "Disk full (/tmp/#sql); waiting for someone to free some space... (errno: 28 \"No space left on device\")",
            ),
            (1114, "The table 'partage_keys' is full"),
            (1637, "Too many active concurrent transactions"),
            (1030, "Got error 28 \"No space left on device\" from storage engine InnoDB"),
            (1030, "Got error 122 'Disk quota exceeded' from storage engine"),
        ];
        for (number, words) in of_the_statement {
            assert!(is_no_room(&said(number, words).nothing_happened("mysql://h/r")), "{number}");
            assert!(is_no_room(&said(number, words).of_statement("mysql://h/r")), "{number}");
            let unknown = said(number, words).of_commit("mysql://h/r");
            assert!(matches!(unknown, Fault::Final(Error::Indefinite { .. })), "{number} of a commit");
        }
        let of_writing = [
            (1026, "Error writing file './binlog' (errno: 28 \"No space left on device\")"),
            (3, "Error writing file '/tmp/MLx' (Errcode: 28 \"No space left on device\")"),
            (3, "Error writing file '/tmp/MLx' (Errcode: 27 \"File too large\")"),
        ];
        for (number, words) in of_writing {
            assert!(is_no_room(&said(number, words).nothing_happened("mysql://h/r")), "{number}");
            let unknown = said(number, words).of_statement("mysql://h/r");
            assert!(matches!(unknown, Fault::Final(Error::Indefinite { .. })), "{number}");
        }
    }

    #[test]
    fn other_errors_of_the_same_kinds_are_not_taken_for_it() {
        for (number, words) in [
            (1030, "Got error 168 \"Unknown (generic) error from engine\" from storage engine InnoDB"),
            (1030, "Got error 128 \"Out of memory in engine\" from storage engine"),
            (1026, "Error writing file './binlog' (errno: 5 \"Input/output error\")"),
        ] {
            let fault = said(number, words).nothing_happened("mysql://h/r");
            assert!(matches!(fault, Fault::Final(Error::Unavailable { .. })), "{number} {words}");
        }
    }
}
