//! `CLIENT`: about the own connection.

use super::{Session, subcommand};
use crate::limits;
use crate::reply::{Reply, Version, shown};
use crate::request::Arguments;

/// Whether a connection can have that name.
///
/// # Errors
/// The name is too long, or has bytes that names must not have.
pub fn check_name(name: &[u8]) -> Result<(), Reply> {
    if name.len() > limits::CLIENT_NAME_BYTES {
        let text = format!("a client name has at most {} bytes", limits::CLIENT_NAME_BYTES);
        return Err(Reply::error(text));
    }
    if name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        return Ok(());
    }
    Err(Reply::error("Client names cannot contain spaces, newlines or special characters."))
}

impl Session {
    pub(super) fn client(&mut self, arguments: Arguments<'_>) -> Result<Reply, Reply> {
        const ANY: usize = usize::MAX;
        let counts = [
            ("getname", 2..=2),
            ("id", 2..=2),
            ("info", 2..=2),
            ("list", 2..=ANY),
            ("setinfo", 4..=4),
            ("setname", 3..=3),
        ];
        match subcommand(arguments, &counts)?.as_str() {
            "getname" if self.name.is_empty() => Ok(Reply::Null),
            "getname" => Ok(Reply::Bytes(self.name.clone())),
            "id" => Ok(Reply::Integer(self.id as i64)),
            "setinfo" => self.set_info(arguments),
            "setname" => {
                check_name(arguments.get(2))?;
                self.name = arguments.get(2).to_vec();
                Ok(Reply::OK)
            }
            _ => Ok(Reply::Text(self.line())),
        }
    }

    fn set_info(&mut self, arguments: Arguments<'_>) -> Result<Reply, Reply> {
        let value = arguments.get(3);
        let which = match arguments.get(2).to_ascii_lowercase().as_slice() {
            b"lib-name" => &mut self.library.0,
            b"lib-ver" => &mut self.library.1,
            other => return Err(Reply::error(format_args!("Unrecognized option '{}'", shown(other)))),
        };
        if check_name(value).is_err() {
            let option = shown(arguments.get(2));
            return Err(Reply::error(format_args!(
                "{option} cannot contain spaces, newlines or special characters."
            )));
        }
        *which = value.to_vec();
        Ok(Reply::OK)
    }

    fn line(&self) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let age = partage_clock::unix_seconds().saturating_sub(self.began_s);
        let flags = match (&self.queue, self.reads_any) {
            (Some(_), _) => "x",
            (None, true) => "r",
            (None, false) => "N",
        };
        format!(
            "id={} addr={} laddr={} name={} age={age} idle=0 flags={flags} db=0 sub=0 psub=0 multi={} watch={} cmd=client \
             user={} lib-name={} lib-ver={} resp={}\n",
            self.id,
            self.peer,
            self.local,
            text(&self.name),
            self.queue.as_ref().map_or(-1, |queue| queue.len() as i64),
            self.watched.len(),
            self.known_table().map_or("", |table| table.name()),
            text(&self.library.0),
            text(&self.library.1),
            if self.version == Version::Two { 2 } else { 3 },
        )
    }
}
