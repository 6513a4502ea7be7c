//! Rows that are written before something happens to the servers, and must all be there afterwards.

use crate::Done;
use crate::cluster::Layout;
use crate::resp::{self, Answer, Connection};
use crate::rows::{self, key, value};
use bench_gauge::{now, rest, say};
use std::io::{Error, Result};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

/// Requests of one group.
const GROUP: usize = 200;

/// Numbers of rows from here on: those below are of the load.
pub const FROM: u64 = 1 << 40;

/// Writes rows; all are acknowledged.
pub fn write(servers: &[SocketAddr], layout: &Layout, numbers: Range<u64>) -> Result<()> {
    each(servers, layout, numbers, &mut |connection, numbers| {
        let mut out = Vec::new();
        numbers.iter().for_each(|number| resp::set(&mut out, &key(*number), &value(*number)));
        connection.send(&out)?;
        for number in numbers {
            match connection.answer()? {
                Answer::Done => {}
                other => return Err(Error::other(format!("row {number} is not written: {other:?}"))),
            }
        }
        Ok(())
    })
}

/// Reads rows; those that are not there, or not as they were written.
pub fn lost(servers: &[SocketAddr], layout: &Layout, numbers: Range<u64>) -> Result<Vec<String>> {
    let mut lost = Vec::new();
    each(servers, layout, numbers, &mut |connection, numbers| {
        let mut out = Vec::new();
        numbers.iter().for_each(|number| resp::get(&mut out, &key(*number)));
        connection.send(&out)?;
        for number in numbers {
            match connection.answer()? {
                Answer::Value(Some(found)) if rows::number(&found) == Some(*number) => {}
                Answer::Error(error) => return Err(Error::other(error)),
                other => lost.push(format!("row {number} is {other:?}")),
            }
        }
        Ok(())
    })?;
    Ok(lost)
}

/// An error if something is lost, or was read that cannot be so; it says what.
pub fn none_is_lost(lost: &[String]) -> Done {
    let Some(first) = lost.first() else {
        say("nothing acknowledged is lost");
        return Ok(());
    };
    Err(format!("LOST: {} rows are not as they were acknowledged; the first: {first}", lost.len()).into())
}

type Handle<'a> = &'a mut dyn FnMut(&mut Connection, &[u64]) -> Result<()>;

/// In groups, each to the node that leads its rows; a group is tried again for a while.
fn each(servers: &[SocketAddr], layout: &Layout, numbers: Range<u64>, handle: Handle<'_>) -> Result<()> {
    let mut of_nodes = vec![Vec::new(); servers.len()];
    for number in numbers {
        let leader = layout.0[layout.shard(&key(number))].leader;
        of_nodes[leader.unwrap_or_default()].push(number);
    }
    for (server, numbers) in servers.iter().zip(of_nodes) {
        let mut connection = None;
        for group in numbers.chunks(GROUP) {
            let end = now() + Duration::from_secs(30);
            loop {
                let tried = match &mut connection {
                    Some(connection) => handle(connection, group),
                    None => Connection::open(*server, Duration::from_secs(20))
                        .and_then(|opened| handle(connection.insert(opened), group)),
                };
                match tried {
                    Ok(()) => break,
                    Err(error) if now() > end => return Err(error),
                    Err(_) => connection = None,
                }
                rest(100);
            }
        }
    }
    Ok(())
}
