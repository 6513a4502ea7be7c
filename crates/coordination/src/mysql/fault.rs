//! What went wrong between us and the server, and whether anything can have happened.
//!
//! A server that answers with an error before `COMMIT` has changed nothing. One that does not answer a `COMMIT`
//! may have done it, or may do it yet. Everything here follows from these two sentences.

use std::time::Duration;

use sqlx::mysql::MySqlDatabaseError;

use crate::error::Error;

/// Why one attempt came to nothing.
#[derive(Debug)]
pub(super) enum Fault {
    /// Nothing happened, and it may go well the next time.
    Passing(String),
    /// Nothing happened; the connection is gone, and with it perhaps all others to that server.
    Broken(String),
    /// What the caller is told.
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

/// How the server failed to answer as it should.
#[derive(Debug)]
pub(super) enum Silence {
    /// It answered, with an error.
    Said { number: u16, words: String },
    /// Nothing came, or nothing that can be understood.
    Nothing(String),
    /// Nothing came in time.
    Late(Duration),
}

impl From<sqlx::Error> for Silence {
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

/// Disk full; table full.
const FULL: [u16; 2] = [1021, 1114];

impl Silence {
    /// The error when it is certain that nothing happened. `location` names the target.
    pub fn nothing_happened(self, location: &str) -> Fault {
        let (number, words) = match self {
            Self::Nothing(words) => return Fault::Broken(format!("{location}: {words}")),
            // To wait as long again would help nobody.
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
        } else if FULL.contains(&number) {
            Error::NoRoom {
                location: location.to_owned(),
                what: format!("{words} (error {number}): free some space for the server"),
            }
        } else {
            Error::Unavailable { what: said }
        })
    }

    /// The error of a `COMMIT`, or of a statement that commits by itself.
    pub fn of_commit(self, location: &str) -> Fault {
        match self {
            // These are only ever said of what was rolled back.
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
