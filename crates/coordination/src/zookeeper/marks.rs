//! Marks: for each session a znode that it writes with every renewal, so that the others can end it in time.
//!
//! By itself ZooKeeper ends the session of a dead process up to a `tickTime` late, and no session is shorter than its
//! `minSessionTimeout`: with its defaults, three seconds become four to six. A mark is a heartbeat:
//! a process that sees it unchanged need not wait for ZooKeeper's next tick.
//!
//! | who                | does                                                                                   |
//! |--------------------|----------------------------------------------------------------------------------------|
//! | the session        | makes its mark when it opens, writes it with each renewal and with each commit of its keys |
//! | any other session  | looks at all marks; one that has not changed for its time-to-live is over              |
//! |                    | deletes it, and the session's keys, in one `multi`, if it is still as it was seen      |
//!
//! That is safe, whatever the network does: the owner counts from before it wrote, the others from after they saw,
//! each by its own monotonic clock. And it is the end: a late request of the session writes its mark,
//! which is gone, and so fails. Where no other process has a session, ZooKeeper ends it by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use zookeeper_client::{Client, CreateMode, Error as Fault, Stat};

use super::connection::Connection;
use super::node::session_id;
use super::sessions::Sessions;
use crate::error::Result;
use crate::key::Key;
use crate::limits::{ZOOKEEPER_CLOCK_DRIFT, ZOOKEEPER_SESSION_LOOK};
use crate::session::SessionId;

/// First word of a mark: its form.
const FORM: &str = "1";

/// What a session writes to its mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub ttl: Duration,
    /// All keys that the session may have put; some may be another's by now.
    pub keys: BTreeSet<Key>,
}

impl Mark {
    /// Its time-to-live in microseconds, then a line for each key.
    pub fn to_bytes(&self) -> Vec<u8> {
        let keys: String = self.keys.iter().map(|key| format!("\n{key}")).collect();
        format!("{FORM} {}{keys}", self.ttl.as_micros()).into_bytes()
    }

    /// None for another form: ZooKeeper alone ends such a session.
    fn read(bytes: &[u8]) -> Option<Mark> {
        let mut lines = std::str::from_utf8(bytes).ok()?.split('\n');
        let (form, micros) = lines.next()?.split_once(' ')?;
        let ttl = Duration::from_micros(micros.parse().ok().filter(|_| form == FORM)?);
        let keys = lines.map(Key::new).collect::<std::result::Result<_, _>>().ok()?;
        Some(Mark { ttl, keys })
    }
}

/// Where the mark of a session is.
pub(super) fn path(connection: &Connection, session: SessionId) -> String {
    format!("{}/{:016x}", connection.root().marks(), session.get())
}

fn session_of(name: &str) -> Option<SessionId> {
    u64::from_str_radix(name, 16).ok().map(|number| session_id(number.cast_signed()))
}

/// Makes the mark of the session that `client` has, which goes with it.
pub(super) async fn make(connection: &Connection, client: &Client, mark: &Mark) -> Result<()> {
    let path = path(connection, session_id(client.session_id().0));
    let (acls, data) = (connection.acls(), mark.to_bytes());
    let (above, ephemeral) = (CreateMode::Persistent.with_acls(acls), CreateMode::Ephemeral.with_acls(acls));
    let failed = |fault: Fault| connection.refusal(&fault, &path);
    match client.create(&path, &data, &ephemeral).await {
        Ok(_) => return Ok(()),
        Err(Fault::NoNode) => {}
        Err(fault) => return Err(failed(fault)),
    }
    // The first session below this root.
    match client.create(connection.root().marks(), &[], &above).await {
        Ok(_) | Err(Fault::NodeExists) => {}
        Err(fault) => return Err(failed(fault)),
    }
    client.create(&path, &data, &ephemeral).await.map(drop).map_err(failed)
}

/// A mark as it was last seen to change.
#[derive(Debug)]
struct Seen {
    version: i32,
    since: Instant,
}

/// Ends the sessions of others in time, for as long as `sessions` has one of its own.
pub(super) async fn keep_watch(connection: Arc<Connection>, sessions: Weak<Sessions>) {
    let mut seen = BTreeMap::new();
    loop {
        sleep(ZOOKEEPER_SESSION_LOOK).await;
        let Some(own) = sessions.upgrade().map(|sessions| sessions.ids()) else { return };
        if own.is_empty() {
            seen.clear();
        } else if let Err(error) = connection.answered(look(&connection, &own, &mut seen)).await {
            tracing::debug!(%error, "the sessions of others cannot be seen; looking again");
        }
    }
}

/// One look at all marks. What it ends is only what has not changed since an earlier look.
async fn look(
    connection: &Connection,
    own: &BTreeSet<SessionId>,
    seen: &mut BTreeMap<SessionId, Seen>,
) -> Result<()> {
    let client = connection.client().await?;
    let failed = |fault: Fault| connection.refusal(&fault, connection.root().marks());
    let names = match client.list_children(connection.root().marks()).await {
        Err(Fault::NoNode) => vec![],
        names => names.map_err(failed)?,
    };
    let others: BTreeSet<SessionId> =
        names.iter().filter_map(|name| session_of(name)).filter(|session| !own.contains(session)).collect();
    seen.retain(|session, _| others.contains(session));
    for session in others {
        let (bytes, stat) = match client.get_data(&path(connection, session)).await {
            Err(Fault::NoNode) => continue,
            got => got.map_err(failed)?,
        };
        let now = Instant::now();
        let last = seen.entry(session).or_insert(Seen { version: stat.version, since: now });
        if last.version != stat.version {
            *last = Seen { version: stat.version, since: now };
        }
        let over = |mark: &Mark| now - last.since > mark.ttl.mul_f64(1.0 + ZOOKEEPER_CLOCK_DRIFT);
        if let Some(mark) = Mark::read(&bytes).filter(over) {
            end(connection, &client, session, &mark, &stat).await?;
        }
    }
    Ok(())
}

/// Deletes the mark and the keys of a session, if the mark is as it was seen.
async fn end(
    connection: &Connection,
    client: &Client,
    session: SessionId,
    mark: &Mark,
    stat: &Stat,
) -> Result<()> {
    let path = path(connection, session);
    let failed = |fault: Fault| connection.refusal(&fault, &path);
    let mut request = client.new_multi_writer();
    request.add_delete(&path, Some(stat.version)).map_err(failed)?;
    for key in &mark.keys {
        let path = connection.root().path(key);
        match client.get_data(&path).await {
            Ok((_, stat)) if session_id(stat.ephemeral_owner) == session => {
                request.add_delete(&path, Some(stat.version)).map_err(failed)?;
            }
            // Another's by now, made to stay, or gone.
            Ok(_) | Err(Fault::NoNode) => {}
            Err(fault) => return Err(failed(fault)),
        }
    }
    match request.commit().await {
        Ok(_) => tracing::info!(%session, ttl = ?mark.ttl, "ended a session that its owner did not renew"),
        // It was renewed after all, another was first, or it is not known: the next look sees which.
        Err(error) => tracing::debug!(%session, %error, "the session was not ended"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_comes_back_and_what_is_none_is_left_alone() {
        for keys in [&[][..], &["election/leader", "coordinators/c1"]] {
            let keys = keys.iter().map(|key| Key::new(key).unwrap()).collect();
            let mark = Mark { ttl: Duration::from_millis(1_500), keys };
            assert_eq!(Mark::read(&mark.to_bytes()), Some(mark));
        }
        for other in [&b""[..], b"1", b"2 1000", b"1 x", b"1 1000\n", b"\xFF 1"] {
            assert_eq!(Mark::read(other), None, "{other:?}");
        }
    }
}
