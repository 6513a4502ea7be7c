//! `HELLO` and `AUTH`: the version of the protocol, and the table.

use super::Session;
use super::client::check_name;
use crate::error;
use crate::reply::{Reply, Version, shown};
use crate::request::Arguments;
use crate::table::Table;
use std::sync::Arc;

/// The version of Redis whose answers these are. Clients look at it to see what a server can do.
pub const REDIS_VERSION: &str = "7.0.15";

impl Session {
    pub(super) fn hello(&mut self, arguments: Arguments<'_>) -> Result<Reply, Reply> {
        let mut version = self.version;
        if arguments.len() > 1 {
            let number = crate::request::number(arguments.get(1));
            version = match number {
                Some(2) => Version::Two,
                Some(3) => Version::Three,
                Some(_) => return Err(Reply::Error("NOPROTO unsupported protocol version".to_owned())),
                None => {
                    return Err(Reply::error("Protocol version is not an integer or out of range"));
                }
            };
        }
        let (mut table, mut name, mut at) = (None, None, 2);
        while at < arguments.len() {
            let left = arguments.len() - at - 1;
            match arguments.get(at).to_ascii_uppercase().as_slice() {
                b"AUTH" if left >= 2 => {
                    table = Some(self.table_of(arguments.get(at + 1))?);
                    at += 3;
                }
                b"SETNAME" if left >= 1 => {
                    check_name(arguments.get(at + 1))?;
                    name = Some(arguments.get(at + 1).to_vec());
                    at += 2;
                }
                _ => {
                    let option = shown(arguments.get(at));
                    return Err(Reply::error(format_args!("Syntax error in HELLO option '{option}'")));
                }
            }
        }
        if let Some(table) = table {
            self.change_table(table);
        }
        if let Some(name) = name {
            self.name = name;
        }
        self.version = version;
        let is_cluster = self.known_table().is_some_and(|table| table.has_slots());
        let text = |text: &str| Reply::text(text);
        Ok(Reply::Map(vec![
            (text("server"), text("redis")),
            (text("version"), text(REDIS_VERSION)),
            (text("proto"), Reply::Integer(if version == Version::Two { 2 } else { 3 })),
            (text("id"), Reply::Integer(self.id as i64)),
            (text("mode"), text(if is_cluster { "cluster" } else { "standalone" })),
            (text("role"), text("master")),
            (text("modules"), Reply::Array(Vec::new())),
        ]))
    }

    pub(super) fn auth(&mut self, arguments: Arguments<'_>) -> Result<Reply, Reply> {
        match arguments.len() {
            2 => Err(Reply::error(
                "AUTH <password> called without any password configured for the default user. Are you sure your \
                 configuration is correct? A user name says which table is meant: AUTH <table> <any password>",
            )),
            3 => {
                let table = self.table_of(arguments.get(1))?;
                self.change_table(table);
                Ok(Reply::OK)
            }
            _ => Err(error::syntax()),
        }
    }

    /// What was watched is of the other table.
    fn change_table(&mut self, table: Arc<dyn Table>) {
        self.watched.clear();
        self.last_written = None;
        self.table = table.into();
    }

    /// The table that a user name says.
    fn table_of(&self, user: &[u8]) -> Result<Arc<dyn Table>, Reply> {
        let tables = &self.shared.tables;
        let name = std::str::from_utf8(user).ok();
        let default = || tables.default_table().filter(|_| user == b"default");
        name.and_then(|name| tables.named(name)).or_else(default).ok_or_else(|| {
            let (names, user) = (tables.names().join(", "), shown(user));
            Reply::Error(format!(
                "WRONGPASS invalid username-password pair or user is disabled: there is no table '{user}' here, but {names}"
            ))
        })
    }
}
