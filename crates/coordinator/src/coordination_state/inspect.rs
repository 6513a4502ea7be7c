//! What is in the root of a cluster in a backend, read at one moment, and left as it is: `partage check --coordination`.
//!
//! | key                          | what is looked for                                                        |
//! |------------------------------|---------------------------------------------------------------------------|
//! | `about`                      | whose root it is; a restore that was not finished                         |
//! | `election/…`, `coordinators/…` | who leads, who is there; keys that stay when their owner is gone        |
//! | records and maps             | all that `partage check DIR` looks for; what nothing leads to             |
//! | maps of metadata servers     | the same, if one of the coordinators that keep them is there              |
//! | any other                    | written by somebody else                                                  |
//!
//! And how the root is guarded: TLS, users and rights, as far as the address tells, and the backend itself.

use crate::backend::leaders;
use crate::backend::map_store::local_metadata;
use crate::backend::store::ROOM;
use crate::coordination_state::show::show;
use partage_coordination::{
    ABOUT, ClusterId, Coordination, Entry, Error, Key, Remark, Scope, Target, Update, Weight, cluster_of,
    connect,
};
use partage_core::base::name::KeyspaceName;
use partage_core::cluster::Records;
use partage_core::cluster::check;
use partage_core::keyspace::map::ShardMap;
use partage_metadata::Peers;
use partage_wire::json::Coordinator;
use partage_wire::map::metadata::MapQuestion;
use partage_wire::stored::{
    self, COORDINATORS, ELECTION, EVENTS, Presence, Recovered, Shown, events_slot, is_record, open_events,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Names of what is left over, at the most: the rest is counted.
const NAMED: usize = 5;

/// How often everything is read while maps are being changed.
const LOOKS: usize = 20;

/// What was found in a root.
#[derive(Debug)]
pub struct Inspection {
    /// The cluster that it belongs to; none when it belongs to none.
    pub cluster: Option<ClusterId>,
    /// How many keys it has.
    pub keys: usize,
    /// Who is there, the leader first.
    pub coordinators: Vec<Coordinator>,
    /// What can be read of the cluster.
    pub records: Records,
    /// What is wrong, then what is risky, then what is untidy.
    pub remarks: Vec<Remark>,
    /// Every key.
    pub shown: Vec<Shown>,
}

/// Looks at the root behind an address.
///
/// # Errors
/// When it cannot be read.
pub async fn inspect(target: &Target) -> Result<Inspection, Error> {
    let coordination = connect(target).await?;
    let mut remarks = security_remarks(target);
    remarks.extend(coordination.remarks().await?);
    let (entries, mut recovered) = read_whole(&*coordination, &mut remarks).await?;
    let records = std::mem::take(&mut recovered.records);
    check_records(&records, &recovered, &mut remarks);
    let cluster = owner(target, &entries, &mut remarks);
    let coordinators = list_coordinators(&entries, &mut remarks);
    remarks.sort();
    remarks.dedup();
    let shown = show(&target.to_string(), &entries);
    Ok(Inspection { cluster, keys: entries.len(), coordinators, records, remarks, shown })
}

/// What is wrong with the records, and what is untidy about how they are stored.
fn check_records(records: &Records, recovered: &Recovered, remarks: &mut Vec<Remark>) {
    let findings = check::records(records).into_iter();
    remarks.extend(findings.map(|finding| Remark::new(Weight::Wrong, finding.to_string())));
    if recovered.is_interrupted() {
        let what = "a commit in several transactions has not ended: the next leader finishes it";
        remarks.push(Remark::new(Weight::Untidy, what));
    }
    if !recovered.litter.is_empty() {
        let what = format!("nothing leads to {}: the next leader deletes them", some(&recovered.litter));
        remarks.push(Remark::new(Weight::Untidy, what));
    }
}

/// All keys, what can be read of the cluster, and the maps that metadata servers keep, of one moment. A map that was
/// changed in between has everything read again.
async fn read_whole(
    coordination: &dyn Coordination,
    remarks: &mut Vec<Remark>,
) -> Result<(BTreeMap<Key, Entry>, Recovered), Error> {
    for _ in 0..LOOKS {
        let entries = read(coordination).await?;
        let ours = entries.iter().filter(|(key, _)| is_record(key.as_str()));
        let (mut recovered, damage) = stored::inspect(ours.map(|(key, entry)| (key.as_str(), &entry.value)));
        let Ok((maps, missing)) = maps(&entries, &recovered).await else { continue };
        recovered.records.put_maps(maps);
        // Of a map that cannot be seen nothing can be said.
        recovered.records.keyspaces.retain(|(record, _)| !missing.contains_key(&record.keyspace.name));
        recovered.records.plans.retain(|plan| !missing.contains_key(&plan.keyspace));
        remarks.extend(damage.iter().map(|damage| Remark::new(Weight::Wrong, damage.to_string())));
        remarks.extend(missing.into_values());
        return Ok((entries, recovered));
    }
    Err(Error::Unavailable {
        what: format!("maps were changed each of the {LOOKS} times that all of them were read: try again"),
    })
}

/// A map is another one than the head said that was read before.
struct Changed;

/// The maps behind the heads, from the coordinators that keep them; and what to say of those that no coordinator gives.
async fn maps(
    entries: &BTreeMap<Key, Entry>,
    recovered: &Recovered,
) -> Result<(BTreeMap<KeyspaceName, ShardMap>, BTreeMap<KeyspaceName, Remark>), Changed> {
    let present = entries.iter().filter(|(key, _)| key.as_str().split('/').next() == Some(COORDINATORS));
    let present = local_metadata::present(present.map(|(key, entry)| (key.as_str(), &entry.value[..])));
    let peers = Peers::new(Arc::new(present));
    let (mut maps, mut missing) = (BTreeMap::new(), BTreeMap::new());
    for (keyspace, head) in &recovered.heads {
        let question = MapQuestion { keyspace: keyspace.clone(), sequence: head.at.sequence };
        let mut said = Vec::new();
        for server in &head.servers {
            match peers.fetch(server, &question).await {
                Ok(map) if map.generation() == head.at => {
                    maps.insert(keyspace.clone(), Arc::unwrap_or_clone(map));
                    break;
                }
                Ok(_) => return Err(Changed),
                Err(why) => said.push(format!("{server}: {}", why.message())),
            }
        }
        if !maps.contains_key(keyspace) {
            let what = format!(
                "the map of keyspace {keyspace} was not looked at, as no coordinator that keeps it gives it ({}): start \
                 one of them",
                said.join("; ")
            );
            missing.insert(keyspace.clone(), Remark::new(Weight::Risky, what));
        }
    }
    Ok((maps, missing))
}

/// All keys at one moment: a leader may be changing them.
async fn read(coordination: &dyn Coordination) -> Result<BTreeMap<Key, Entry>, Error> {
    match coordination.watch(Scope::All, None).await?.next().await? {
        Update::Resync { entries, .. } => Ok(entries.into_iter().collect()),
        Update::Changes { .. } => Err(Error::Unavailable {
            what: "a new watch began without the whole content: try again".to_owned(),
        }),
    }
}

/// What the address tells about who may come in.
fn security_remarks(target: &Target) -> Vec<Remark> {
    let mut remarks = Vec::new();
    if target.tls.is_none() {
        let what = "no TLS: everyone who sees the network reads the state and the password, and may change both; name who \
                    signs the backend's certificates with --coordination-ca";
        remarks.push(Remark::new(Weight::Risky, what));
    }
    let has_identity = target.tls.as_ref().is_some_and(|tls| tls.identity.is_some());
    if target.password.is_none() && !has_identity {
        let what = "no password and no certificate: the backend takes anybody for a coordinator; name a user in the \
                    address and --coordination-password-file";
        remarks.push(Remark::new(Weight::Risky, what));
    }
    remarks
}

fn owner(target: &Target, entries: &BTreeMap<Key, Entry>, remarks: &mut Vec<Remark>) -> Option<ClusterId> {
    let about = entries.iter().find(|(key, _)| key.as_str() == ABOUT);
    let Some((_, about)) = about else {
        let what = match entries.is_empty() {
            true => format!("{target} is empty: no cluster has begun there"),
            false => format!("{target} does not say whose it is: its key `about` is missing"),
        };
        remarks.push(Remark::new(Weight::Wrong, what));
        return None;
    };
    match cluster_of(&target.to_string(), &about.value) {
        Ok(cluster) => Some(cluster),
        Err(error) => {
            remarks.push(Remark::new(Weight::Wrong, error.to_string()));
            None
        }
    }
}

/// The bytes in which a coordinator says that it is there, and the term if it is the elected one; none for any other key.
fn said_by_coordinator<'e>(key: &str, value: &'e [u8]) -> Option<(&'e [u8], Option<u64>)> {
    match key.split('/').collect::<Vec<_>>()[..] {
        [ELECTION, "leader"] => match value.split_first_chunk::<8>() {
            Some((term, candidate)) => Some((candidate, Some(u64::from_be_bytes(*term)))),
            None => Some((value, None)),
        },
        [COORDINATORS, _] => Some((value, None)),
        _ => None,
    }
}

/// What is to be said of a key that is no record, and no coordinator's.
fn remark_on_other(key: &str, value: &[u8]) -> Option<Remark> {
    match key.split('/').collect::<Vec<_>>()[..] {
        [ELECTION, "term" | "commit"] if value.len() == 8 => None,
        [EVENTS, _] if events_slot(key).is_some() => {
            let error = open_events(key, value).err()?;
            let what = format!("{error}: these events are not listed; nothing else follows from it");
            Some(Remark::new(Weight::Untidy, what))
        }
        [ROOM] => {
            let what = format!(
                "key `{key}` is of a leader that looked for room and died: the next one takes it away"
            );
            Some(Remark::new(Weight::Untidy, what))
        }
        _ => {
            let what =
                format!("key `{key}` was not written by this program: remove it, or give it another root");
            Some(Remark::new(Weight::Wrong, what))
        }
    }
}

/// Who leads and who is there; and what is neither theirs nor a record.
fn list_coordinators(entries: &BTreeMap<Key, Entry>, remarks: &mut Vec<Remark>) -> Vec<Coordinator> {
    let (mut elected, mut present) = (None, Vec::new());
    for (key, entry) in entries.iter().filter(|(key, _)| key.as_str() != ABOUT && !is_record(key.as_str())) {
        let Some((value, term)) = said_by_coordinator(key.as_str(), &entry.value) else {
            remarks.extend(remark_on_other(key.as_str(), &entry.value));
            continue;
        };
        if entry.session.is_none() {
            let what =
                format!("key `{key}` goes with no session, so it stays when its owner is gone: remove it");
            remarks.push(Remark::new(Weight::Wrong, what));
        }
        match (Presence::from_bytes(key.as_str(), value), term) {
            (Ok(one), Some(term)) => elected = Some((one, term)),
            (Ok(one), None) => present.push(one),
            (Err(error), _) => remarks.push(Remark::new(Weight::Wrong, error.to_string())),
        }
    }
    remarks.extend(remark_on_election(elected.as_ref().map(|(leader, _)| leader), &present));
    let named = elected.as_ref().map(|(one, term)| (one.id.as_str(), *term));
    let problems = leaders::problems(named, &present).into_iter();
    remarks.extend(problems.map(|problem| Remark::new(Weight::Wrong, problem.to_string())));
    leaders::rows(named, elected.as_ref().map(|(one, _)| one), &present)
}

/// What is to be said of a cluster without a leader, or with one that is not there.
fn remark_on_election(elected: Option<&Presence>, present: &[Presence]) -> Option<Remark> {
    let Some(leader) = elected else {
        let what = "no coordinator leads at the moment: start a coordinator";
        return Some(Remark::new(Weight::Risky, what));
    };
    let is_there = present.iter().any(|one| one.id == leader.id);
    let id = &leader.id;
    let what = format!("{id} was elected and is not listed below `{COORDINATORS}`: it may have just gone");
    (!is_there).then(|| Remark::new(Weight::Untidy, what))
}

/// A few of them, and how many there are.
fn some(keys: &[String]) -> String {
    let named = keys.iter().take(NAMED).map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
    match keys.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more keys"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_coordination::{SessionId, Version};

    fn presence(id: &str, leads: Option<u64>) -> Presence {
        let version = "0.1.0".to_owned();
        Presence { id: id.to_owned(), address: "10.0.0.1:7400".to_owned(), since_ms: 1, version, leads }
    }

    fn looked_at(elected: Option<(&str, u64)>, present: &[Presence]) -> (Vec<String>, Vec<Coordinator>) {
        let entry = |value: Vec<u8>| Entry {
            value: value.into(),
            version: Version::new(7),
            session: Some(SessionId::new(1)),
        };
        let leader = elected.map(|(id, term)| {
            let value = [&term.to_be_bytes()[..], &presence(id, None).to_bytes()].concat();
            (Key::new("election/leader").unwrap(), entry(value))
        });
        let keys = present.iter().map(|one| {
            (Key::new(format!("coordinators/{}", one.id)).unwrap(), entry(one.to_bytes().to_vec()))
        });
        let mut remarks = Vec::new();
        let rows = list_coordinators(&keys.chain(leader).collect(), &mut remarks);
        let wrong = remarks.into_iter().filter(|remark| remark.weight == Weight::Wrong);
        (wrong.map(|remark| remark.what).collect(), rows)
    }

    /// D19.
    #[test]
    fn two_that_say_they_lead_are_wrong_and_both_are_named() {
        let (wrong, rows) = looked_at(
            Some(("c2", 2)),
            &[presence("c1", Some(1)), presence("c2", Some(2)), presence("c3", None)],
        );
        assert!(wrong[0].starts_with("2 coordinators lead at once: c1 at term 1, c2 at term 2"), "{wrong:?}");
        assert_eq!(rows.iter().filter(|row| row.leads).count(), 2);
        let (wrong, rows) = looked_at(None, &[presence("c1", Some(1))]);
        assert!(wrong[0].starts_with("c1 at term 1 leads, and the election names no leader"), "{wrong:?}");
        assert!(rows[0].leads);
    }

    #[test]
    fn one_that_was_elected_and_cannot_begin_is_no_leader() {
        let (wrong, rows) = looked_at(Some(("c1", 3)), &[presence("c1", None), presence("c2", None)]);
        assert_eq!(wrong, Vec::<String>::new());
        assert_eq!((rows[0].id.as_str(), rows[0].leads, rows[0].term), ("c1", false, Some(3)));
    }
}
