//! `COMMAND` and `INFO`.

use super::hello::REDIS_VERSION;
use super::{Session, subcommand};
use crate::command::{COMMANDS, Command, find};
use crate::error;
use crate::reply::Reply;
use crate::request::Arguments;
use std::sync::atomic::Ordering;

/// Answers `COMMAND`.
///
/// # Errors
/// There is no such subcommand.
pub fn command(arguments: Arguments<'_>) -> Result<Reply, Reply> {
    if arguments.len() == 1 {
        return Ok(Reply::Array(COMMANDS.iter().map(about).collect()));
    }
    let any = 2..=usize::MAX;
    let counts = [("count", 2..=2), ("docs", any.clone()), ("info", any), ("list", 2..=2)];
    let named = || arguments.from(2).map(find);
    Ok(match subcommand(arguments, &counts)?.as_str() {
        "count" => Reply::Integer(COMMANDS.len() as i64),
        "list" => Reply::Array(COMMANDS.iter().map(|command| Reply::text(command.name)).collect()),
        "docs" if arguments.len() == 2 => Reply::Map(COMMANDS.iter().map(documented).collect()),
        "docs" => Reply::Map(named().flatten().map(documented).collect()),
        _ if arguments.len() == 2 => Reply::Array(COMMANDS.iter().map(about).collect()),
        _ => Reply::Array(named().map(|command| command.map_or(Reply::NullArray, about)).collect()),
    })
}

/// What clients want to know: where the keys are.
fn about(command: &Command) -> Reply {
    let words = |words: &[&'static str]| words.iter().map(|word| Reply::Word(word)).collect();
    let (first, last, step) = command.keys;
    let kind = match command.flags.first() {
        Some(&"readonly") => "@read",
        Some(&"write") => "@write",
        _ => "@connection",
    };
    Reply::Array(vec![
        Reply::text(command.name),
        Reply::Integer(command.arity),
        Reply::Set(words(command.flags)),
        Reply::Integer(first),
        Reply::Integer(last),
        Reply::Integer(step),
        Reply::Set(words(&[kind])),
        Reply::Array(Vec::new()),
        Reply::Array(Vec::new()),
        Reply::Array(Vec::new()),
    ])
}

fn documented(command: &Command) -> (Reply, Reply) {
    let text = |text: &str| Reply::text(text);
    let documentation = vec![
        (text("summary"), text(command.summary)),
        (text("since"), text(command.since)),
        (text("group"), text(command.group)),
    ];
    (text(command.name), Reply::Map(documentation))
}

impl Session {
    pub(super) async fn info(&mut self, arguments: Arguments<'_>) -> Result<Reply, Reply> {
        let asked: Vec<Vec<u8>> = arguments.from(1).map(<[u8]>::to_ascii_lowercase).collect();
        let is_asked = |section: &str| {
            let all: [&[u8]; 3] = [b"all", b"everything", b"default"];
            asked.is_empty()
                || asked.iter().any(|one| one == section.as_bytes() || all.contains(&one.as_slice()))
        };
        let (table, shared) = (self.table()?.clone(), &self.shared);
        let slots = table.has_slots();
        let mode = if slots { "cluster" } else { "standalone" };
        let uptime = partage_clock::unix_seconds().saturating_sub(shared.began_s);
        let mut sections = Vec::new();
        let mut add = |name: &str, lines: String| {
            if is_asked(&name.to_ascii_lowercase()) {
                sections.push(format!("# {name}\r\n{lines}\r\n"));
            }
        };
        let node = table.own_node();
        add(
            "Server",
            format!(
                "redis_version:{REDIS_VERSION}\r\nredis_mode:{mode}\r\nserver_name:partage\r\nnode:{}\r\ntcp_port:{}\r\n\
                 uptime_in_seconds:{uptime}\r\ntable:{}",
                node.name,
                node.port,
                table.name()
            ),
        );
        add("Clients", format!("total_connections_received:{}", shared.connections.load(Ordering::Relaxed)));
        add("Stats", format!("total_commands_processed:{}", shared.commands.load(Ordering::Relaxed)));
        if is_asked("replication") {
            let in_sync = table.in_sync(self.last_written.as_ref()).await;
            let followers = in_sync.map_err(|error| error::reply(&error))?.saturating_sub(1);
            add("Replication", format!("role:master\r\nconnected_slaves:{followers}"));
        }
        add("Cluster", format!("cluster_enabled:{}", u8::from(slots)));
        Ok(Reply::Text(sections.join("\r\n")))
    }
}
