//! One connection, every statement on it with a deadline.
//!
//! Statements about keys alone go as text, several in one message, with outside data as
//! hexadecimal literals, so there is nothing to quote. Large values go as parameters.

use std::fmt::Write as _;

use sqlx::mysql::{MySql, MySqlArguments, MySqlConnection, MySqlRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, ColumnIndex, Decode, Either, Row, Type};
use tokio::time::timeout;
use tokio_stream::StreamExt;

use crate::error::Error;
use crate::limits::MYSQL_STATEMENT;

use super::fault::{AnswerError, Attempt, Fault};

/// A connection that is set up for one root.
#[derive(Debug)]
pub(super) struct RootConnection {
    connection: MySqlConnection,
    location: String,
    root: u32,
    packet_bytes: usize,
}

/// The rows of each statement in a text.
pub(super) type Results = Vec<Vec<MySqlRow>>;

/// `text` as a literal of bytes.
pub(super) fn hex(text: &str) -> String {
    bytes_literal(text.as_bytes())
}

/// `bytes` as a literal.
pub(super) fn bytes_literal(bytes: &[u8]) -> String {
    let mut literal = String::with_capacity(bytes.len() * 2 + 3);
    literal.push_str("x'");
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(literal, "{byte:02x}");
    }
    literal.push('\'');
    literal
}

impl RootConnection {
    pub fn new(connection: MySqlConnection, location: String) -> Self {
        Self { connection, location, root: 0, packet_bytes: 0 }
    }

    pub fn belongs_to(&mut self, root: u32, packet_bytes: usize) {
        self.root = root;
        self.packet_bytes = packet_bytes;
    }

    /// The target, for messages.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// The number of our root on this server.
    pub fn root(&self) -> u32 {
        self.root
    }

    /// The largest message this server takes.
    pub fn packet_bytes(&self) -> usize {
        self.packet_bytes
    }

    /// Runs the statements in `sql`, all of which may be repeated.
    pub async fn text(&mut self, sql: &str) -> Attempt<Results> {
        let outcome = self.run(sql).await;
        outcome.map_err(|(_, silence)| silence.nothing_happened(&self.location))
    }

    /// Runs `sql`, one statement that commits by itself. Returns the rows it changed.
    pub async fn commits_itself(&mut self, sql: &str) -> Attempt<u64> {
        let asking = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut self.connection);
        match timeout(MYSQL_STATEMENT, asking).await {
            Ok(Ok(done)) => Ok(done.rows_affected()),
            Ok(Err(error)) => Err(AnswerError::from(error).of_statement(&self.location)),
            Err(_) => Err(AnswerError::Late(MYSQL_STATEMENT).of_statement(&self.location)),
        }
    }

    /// Runs `statements`, then `COMMIT`, in one message.
    pub async fn commit(&mut self, statements: &[String]) -> Attempt<()> {
        let sql = format!("{};COMMIT", statements.join(";"));
        match self.run(&sql).await {
            Ok(_) => Ok(()),
            // The server stops at the first error, before the commit.
            Err((done, said @ AnswerError::Said { .. })) if done < statements.len() => {
                Err(said.nothing_happened(&self.location))
            }
            Err((_, silence)) => Err(silence.of_commit(&self.location)),
        }
    }

    /// Runs a statement with parameters that commits nothing.
    pub async fn ask(&mut self, query: Query<'_, MySql, MySqlArguments>) -> Attempt<Vec<MySqlRow>> {
        match timeout(MYSQL_STATEMENT, query.fetch_all(&mut self.connection)).await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => Err(AnswerError::from(error).nothing_happened(&self.location)),
            Err(_) => Err(AnswerError::Late(MYSQL_STATEMENT).nothing_happened(&self.location)),
        }
    }

    /// The results, or how many statements were done before something went wrong.
    async fn run(&mut self, sql: &str) -> Result<Results, (usize, AnswerError)> {
        let mut results = vec![Vec::new()];
        let reading = async {
            let mut answers = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).fetch_many(&mut self.connection);
            while let Some(answer) = answers.next().await {
                match answer? {
                    Either::Left(_) => results.push(Vec::new()),
                    Either::Right(row) => results.last_mut().expect("begun with one").push(row),
                }
            }
            Ok::<_, sqlx::Error>(())
        };
        let outcome = timeout(MYSQL_STATEMENT, reading).await;
        results.pop();
        match outcome {
            Ok(Ok(())) => Ok(results),
            Ok(Err(error)) => Err((results.len(), error.into())),
            Err(_) => Err((results.len(), AnswerError::Late(MYSQL_STATEMENT))),
        }
    }

    /// The error when the row of the root is missing, to which all other rows refer.
    pub fn root_is_gone(&self) -> Fault {
        let what = format!("{}: the root's row in `partage_roots` is gone: restore a backup", self.location);
        Fault::Final(Error::Invalid { what })
    }

    /// A column of a row that this program asked for.
    pub fn get<'r, T, I>(&self, row: &'r MySqlRow, column: I) -> Attempt<T>
    where
        T: Decode<'r, MySql> + Type<MySql>,
        I: ColumnIndex<MySqlRow>,
    {
        row.try_get(column).map_err(|error| {
            let what = format!("{}: the tables are not as this program made them: {error}", self.location);
            Fault::Final(Error::Invalid { what })
        })
    }
}
