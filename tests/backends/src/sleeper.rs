//! A subscriber that does not listen (W6): what it costs, in bytes that come over its link, and what it gets when it does.

use crate::link::{Link, Way};
use bytes::Bytes;
use partage_coordination::{Coordination, Key, Scope, Transaction, Update, View};

/// Keys that are written meanwhile, each with so many bytes: a backlog of 24 MiB.
const KEYS: usize = 48;
const VALUE_BYTES: usize = 512 << 10;

/// Writes through `near` while a watch of `far`, whose only way to the server is `link`, is not listened to. At most
/// `bound` bytes come to it; its handle serves others; and when it listens it gets the latest, once. Returns how many came.
pub async fn costs_little(near: &dyn Coordination, far: &dyn Coordination, link: &Link, bound: u64) -> u64 {
    let mut watch = far.watch(Scope::Below(key("s")), None).await.unwrap();
    let mut view = View::new();
    view.fold(watch.next().await.unwrap());
    let before = link.carried(Way::Back);
    for number in 0..KEYS {
        let value = Bytes::from(vec![number as u8; VALUE_BYTES]);
        near.commit(Transaction::new().put(&at(number), value)).await.unwrap();
    }
    let last = near.commit(Transaction::new().put(&key("s/last"), "")).await.unwrap();
    // Whatever was under way has come when this has: it takes the same way, and is not held up.
    assert!(far.read(&key("s/last")).await.unwrap().is_some());
    let came = link.carried(Way::Back) - before;
    assert!(came <= bound, "{came} bytes came to somebody who does not listen");

    let (mut updates, mut bytes) = (0, 0);
    while view.at() < last {
        let update = watch.next().await.unwrap();
        bytes += size(&update);
        updates += 1;
        view.fold(update);
    }
    let content = KEYS * VALUE_BYTES;
    assert!(bytes <= content + content / 2, "{bytes} bytes in {updates} updates, and not the latest alone");
    let held = view.entries();
    assert_eq!(held.len(), KEYS + 1);
    assert!((0..KEYS).all(|number| held[&at(number)].value.first() == Some(&(number as u8))));
    came
}

fn key(path: &str) -> Key {
    Key::new(path).unwrap()
}

fn at(number: usize) -> Key {
    key(&format!("s/{number}"))
}

fn size(update: &Update) -> usize {
    match update {
        Update::Changes { changes, .. } => {
            changes.iter().map(|change| change.entry.as_ref().map_or(0, |entry| entry.value.len())).sum()
        }
        Update::Resync { entries, .. } => entries.iter().map(|(_, entry)| entry.value.len()).sum(),
    }
}
