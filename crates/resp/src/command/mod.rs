//! The commands: their names, what they take, and what carries them out.

pub mod rows;
mod strings;

use crate::reply::{Reply, shown};
use crate::request::Arguments;
use rows::Rows;
pub use strings::Parsed;

/// What a command is.
#[derive(Debug)]
pub struct Command {
    /// The name in lower case, by which [`COMMANDS`] is sorted.
    pub name: &'static str,
    /// How many arguments there must be, the name among them; if negative, at least.
    pub arity: i64,
    /// First and last argument that is a key (if negative, from the end), and from one to the next.
    pub keys: (i64, i64, i64),
    /// What Redis says of it.
    pub flags: &'static [&'static str],
    /// The group of Redis' documentation.
    pub group: &'static str,
    /// The first version of Redis that had it.
    pub since: &'static str,
    /// One sentence, which `COMMAND DOCS` gives to people.
    pub summary: &'static str,
    /// What carries the command out: the table or the session.
    pub handler: Handler,
}

impl Command {
    /// Whether it may change a row.
    pub fn writes(&self) -> bool {
        self.flags.first() == Some(&"write")
    }
}

/// What carries a command out.
#[derive(Debug, Clone, Copy)]
pub enum Handler {
    /// The table, as this function says, which gets the time of day.
    Rows(fn(Arguments<'_>, u64) -> Result<Rows, Reply>),
    /// The session of the connection.
    Session(Verb),
}

/// What a session does; the names are those of the commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Asking,
    Auth,
    Client,
    Cluster,
    Command,
    DbSize,
    Discard,
    Echo,
    Exec,
    Hello,
    Info,
    Multi,
    Ping,
    Quit,
    RandomKey,
    ReadOnly,
    ReadWrite,
    Reset,
    Scan,
    Select,
    Unwatch,
    Wait,
    Watch,
}

/// The command of that name, in any case.
pub fn find(name: &[u8]) -> Option<&'static Command> {
    /// Longer than any name.
    const LONGEST: usize = 16;
    let mut lower = [0; LONGEST];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    let at = COMMANDS.binary_search_by(|command| command.name.as_bytes().cmp(lower)).ok()?;
    Some(&COMMANDS[at])
}

/// The command, if it is one and the number of its arguments is right.
///
/// # Errors
/// What is answered instead.
pub fn recognize(arguments: Arguments<'_>) -> Result<&'static Command, Reply> {
    let Some(command) = find(arguments.get(0)) else { return Err(unknown(arguments)) };
    let count = arguments.len() as i64;
    let fits = if command.arity < 0 { count >= -command.arity } else { count == command.arity };
    if fits { Ok(command) } else { Err(wrong_count(command.name)) }
}

/// The wrong number of arguments.
pub fn wrong_count(name: &str) -> Reply {
    Reply::error(format_args!("wrong number of arguments for '{name}' command"))
}

fn unknown(arguments: Arguments<'_>) -> Reply {
    let mut shown_arguments = String::new();
    for argument in arguments.from(1) {
        let room = crate::limits::SHOWN.saturating_sub(shown_arguments.len());
        if room == 0 {
            break;
        }
        shown_arguments.push_str(&format!("'{}' ", shown(&argument[..argument.len().min(room)])));
    }
    let name = shown(arguments.get(0));
    Reply::error(format_args!("unknown command '{name}', with args beginning with: {shown_arguments}"))
}

const NONE: (i64, i64, i64) = (0, 0, 0);
const ONE: (i64, i64, i64) = (1, 1, 1);
const ALL: (i64, i64, i64) = (1, -1, 1);
const PAIRS: (i64, i64, i64) = (1, -1, 2);
const READ: &[&str] = &["readonly", "fast"];
const WRITE: &[&str] = &["write", "denyoom", "fast"];
const REMOVE: &[&str] = &["write", "fast"];
const PLAIN: &[&str] = &["loading", "stale", "fast"];

macro_rules! command {
    ($name:literal $arity:literal $keys:ident $flags:ident $group:literal $since:literal $handler:expr, $summary:literal) => {
        Command {
            name: $name,
            arity: $arity,
            keys: $keys,
            flags: $flags,
            group: $group,
            since: $since,
            summary: $summary,
            handler: $handler,
        }
    };
}

use Handler::{Rows as OnRows, Session as InSession};

/// All commands, by name.
#[rustfmt::skip]
pub static COMMANDS: &[Command] = &[
    command!("append" 3 ONE WRITE "string" "2.0.0" OnRows(strings::append), "Appends to a value"),
    command!("asking" 1 NONE PLAIN "cluster" "3.0.0" InSession(Verb::Asking), "Has no effect: no slot is ever half moved"),
    command!("auth" -2 NONE PLAIN "connection" "1.0.0" InSession(Verb::Auth), "Chooses the table by user name"),
    command!("client" -2 NONE PLAIN "connection" "2.4.0" InSession(Verb::Client), "About the own connection"),
    command!("cluster" -2 NONE PLAIN "cluster" "3.0.0" InSession(Verb::Cluster), "Who leads which slots"),
    command!("command" -1 NONE PLAIN "server" "2.8.13" InSession(Verb::Command), "The commands that there are"),
    command!("dbsize" 1 NONE READ "server" "1.0.0" InSession(Verb::DbSize), "Counts the rows"),
    command!("decr" 2 ONE WRITE "string" "1.0.0" OnRows(strings::decr), "Makes a number smaller by one"),
    command!("decrby" 3 ONE WRITE "string" "1.0.0" OnRows(strings::decrby), "Makes a number smaller"),
    command!("del" -2 ALL REMOVE "generic" "1.0.0" OnRows(strings::del), "Deletes rows"),
    command!("discard" 1 NONE PLAIN "transactions" "2.0.0" InSession(Verb::Discard), "Forgets a transaction"),
    command!("echo" 2 NONE PLAIN "connection" "1.0.0" InSession(Verb::Echo), "Answers with its argument"),
    command!("exec" 1 NONE PLAIN "transactions" "1.2.0" InSession(Verb::Exec), "Carries a transaction out as one"),
    command!("exists" -2 ALL READ "generic" "1.0.0" OnRows(strings::exists), "Counts the keys that are there"),
    command!("expire" -3 ONE REMOVE "generic" "1.0.0" OnRows(strings::expire), "Sets a time to live in seconds"),
    command!("expireat" -3 ONE REMOVE "generic" "1.2.0" OnRows(strings::expire), "Sets when a row ends, in seconds"),
    command!("expiretime" 2 ONE READ "generic" "7.0.0" OnRows(strings::expiretime), "When a row ends, in seconds"),
    command!("get" 2 ONE READ "string" "1.0.0" OnRows(strings::get), "Reads a value"),
    command!("getdel" 2 ONE REMOVE "string" "6.2.0" OnRows(strings::getdel), "Reads a value and deletes the row"),
    command!("getex" -2 ONE REMOVE "string" "6.2.0" OnRows(strings::getex), "Reads a value and sets when the row ends"),
    command!("getrange" 4 ONE READ "string" "2.4.0" OnRows(strings::getrange), "Reads a part of a value"),
    command!("getset" 3 ONE WRITE "string" "1.0.0" OnRows(strings::getset), "Writes a value and answers with the former"),
    command!("hello" -1 NONE PLAIN "connection" "6.0.0" InSession(Verb::Hello), "Chooses the version of the protocol"),
    command!("incr" 2 ONE WRITE "string" "1.0.0" OnRows(strings::incr), "Makes a number larger by one"),
    command!("incrby" 3 ONE WRITE "string" "1.0.0" OnRows(strings::incrby), "Makes a number larger"),
    command!("info" -1 NONE PLAIN "server" "1.0.0" InSession(Verb::Info), "About the node and the table"),
    command!("mget" -2 ALL READ "string" "1.0.0" OnRows(strings::mget), "Reads several values"),
    command!("mset" -3 PAIRS WRITE "string" "1.0.1" OnRows(strings::mset), "Writes several values as one"),
    command!("msetnx" -3 PAIRS WRITE "string" "1.0.1" OnRows(strings::mset), "Writes several values as one if no key is there"),
    command!("multi" 1 NONE PLAIN "transactions" "1.2.0" InSession(Verb::Multi), "Begins a transaction"),
    command!("persist" 2 ONE REMOVE "generic" "2.2.0" OnRows(strings::persist), "Removes the time to live"),
    command!("pexpire" -3 ONE REMOVE "generic" "2.6.0" OnRows(strings::expire), "Sets a time to live in milliseconds"),
    command!("pexpireat" -3 ONE REMOVE "generic" "2.6.0" OnRows(strings::expire), "Sets when a row ends, in milliseconds"),
    command!("pexpiretime" 2 ONE READ "generic" "7.0.0" OnRows(strings::pexpiretime), "When a row ends, in milliseconds"),
    command!("ping" -1 NONE PLAIN "connection" "1.0.0" InSession(Verb::Ping), "Answers"),
    command!("psetex" 4 ONE WRITE "string" "2.6.0" OnRows(strings::setex), "Writes a value with a time to live in milliseconds"),
    command!("pttl" 2 ONE READ "generic" "2.6.0" OnRows(strings::pttl), "How long a row lives on, in milliseconds"),
    command!("quit" -1 NONE PLAIN "connection" "1.0.0" InSession(Verb::Quit), "Closes the connection"),
    command!("randomkey" 1 NONE READ "generic" "1.0.0" InSession(Verb::RandomKey), "A key of a row that is there"),
    command!("readonly" 1 NONE PLAIN "cluster" "3.0.0" InSession(Verb::ReadOnly), "Reads of the connection may be answered by any replica"),
    command!("readwrite" 1 NONE PLAIN "cluster" "3.0.0" InSession(Verb::ReadWrite), "Reads of the connection see all that was acknowledged"),
    command!("reset" 1 NONE PLAIN "connection" "6.2.0" InSession(Verb::Reset), "Makes the connection as a new one"),
    command!("scan" -2 NONE READ "generic" "2.8.0" InSession(Verb::Scan), "Keys, some at a time"),
    command!("select" 2 NONE PLAIN "connection" "1.0.0" InSession(Verb::Select), "Takes 0 only"),
    command!("set" -3 ONE WRITE "string" "1.0.0" OnRows(strings::set), "Writes a value"),
    command!("setex" 4 ONE WRITE "string" "2.0.0" OnRows(strings::setex), "Writes a value with a time to live in seconds"),
    command!("setnx" 3 ONE WRITE "string" "1.0.0" OnRows(strings::setnx), "Writes a value if there is none"),
    command!("strlen" 2 ONE READ "string" "2.2.0" OnRows(strings::strlen), "The length of a value"),
    command!("touch" -2 ALL READ "generic" "3.2.1" OnRows(strings::exists), "Counts the keys that are there"),
    command!("ttl" 2 ONE READ "generic" "1.0.0" OnRows(strings::ttl), "How long a row lives on, in seconds"),
    command!("type" 2 ONE READ "generic" "1.0.0" OnRows(strings::kind), "string, or none"),
    command!("unlink" -2 ALL REMOVE "generic" "4.0.0" OnRows(strings::del), "Deletes rows"),
    command!("unwatch" 1 NONE PLAIN "transactions" "2.2.0" InSession(Verb::Unwatch), "Watches no key any more"),
    command!("wait" 3 NONE PLAIN "generic" "3.0.0" InSession(Verb::Wait), "How many followers are in sync, and so have all that was acknowledged"),
    command!("watch" -2 ALL PLAIN "transactions" "2.2.0" InSession(Verb::Watch), "Carries the next transaction out only if these rows are as they are now"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::OwnedArguments;

    #[test]
    fn commands_are_in_order_and_found_in_any_case() {
        assert!(COMMANDS.windows(2).all(|pair| pair[0].name < pair[1].name));
        for command in COMMANDS {
            let found = find(command.name.to_ascii_uppercase().as_bytes()).unwrap();
            assert_eq!(found.name, command.name);
        }
        assert!(find(b"").is_none() && find(&[b'a'; 100]).is_none());
    }

    #[test]
    fn what_is_unknown_is_named_with_the_beginning_of_its_arguments() {
        let long = vec![b'x'; 300];
        let arguments = OwnedArguments::of(&[b"fo\r\no", b"a", &long]);
        let Err(Reply::Error(text)) = recognize(arguments.as_arguments()) else { panic!("no error") };
        assert!(
            text.starts_with("ERR unknown command 'fo??o', with args beginning with: 'a' 'xxx"),
            "{text}"
        );
        assert!(text.len() < 250, "{text}");
    }
}
