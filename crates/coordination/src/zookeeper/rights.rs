//! The ACLs of the znodes below the root: for `partage check`.
//!
//! We set ACLs when a znode is made, and never again. So znodes made without a user stay open to anybody after
//! one was introduced, until an operator changes them with `setAcl`.

use std::collections::BTreeMap;

use zookeeper_client::{Error as Fault, Permission};

use crate::contract::{Remark, Weight};
use crate::error::Result;

use super::connection::Connection;

/// Znodes that are open to anybody, by what anybody may do; and what is below the root and is not ours to read.
pub(super) async fn remarks(connection: &Connection) -> Result<Vec<Remark>> {
    let client = connection.client().await?;
    let mut waiting = vec![connection.root().as_str().to_owned()];
    let mut open: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut remarks = Vec::new();
    while let Some(path) = waiting.pop() {
        match client.get_acl(&path).await {
            // It went while we looked.
            Err(Fault::NoNode) => continue,
            Err(fault) => return Err(connection.refusal(&fault, &path)),
            Ok((rights, _)) => {
                let anybody = rights.iter().filter(|acl| acl.auth_id().scheme() == "world");
                let may = anybody.fold(Permission::NONE, |all, acl| all | acl.permission());
                if may != Permission::NONE {
                    let what = if may == Permission::READ { "read" } else { "change" };
                    open.entry(what).or_default().push(path.clone());
                }
            }
        }
        match client.list_children(&path).await {
            Ok(names) => waiting.extend(names.into_iter().map(|name| format!("{path}/{name}"))),
            Err(Fault::NoNode) => {}
            Err(Fault::NoAuth) => {
                let what =
                    format!("znode `{path}` is below the root and this user may not read it: see `getAcl`");
                remarks.push(Remark::new(Weight::Wrong, what));
            }
            Err(fault) => return Err(connection.refusal(&fault, &path)),
        }
    }
    remarks.extend(open.into_iter().map(|(what, mut paths)| {
        paths.sort();
        let first = paths.first().map_or("", String::as_str);
        let count = paths.len();
        Remark::new(
            Weight::Risky,
            format!(
                "anybody who reaches ZooKeeper may {what} {count} znodes, the first is `{first}`: name a user and a \
                 password, and give that user the rights with `setAcl -R`"
            ),
        )
    }));
    Ok(remarks)
}
