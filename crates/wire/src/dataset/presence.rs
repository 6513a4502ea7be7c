//! What dataset nodes publish in the coordination service, and what a node remembers over a restart.
//!
//! ```text
//! datasets/v1/<cluster>/nodes/<host:port>                          seat right       "3 settled"
//! datasets/v1/<cluster>/datasets/<dataset>/<version>/<host:port>   hash partitions digest which keys
//!                                                                                   "java-bytes 20 8c1f0e22d9a4b673 0f3a1 73"
//! datasets/v1/<cluster>/pins/<dataset>/<host:port>                 order version    "7 20240102"
//! ```
//!
//! A node has one key in each place, so that it is never seen at two seats or with half of a change. Which partitions it
//! has is the value and not part of names: ZooKeeper takes a thousand keys of a session, and a node may have many
//! thousand partitions. They are bits in hexadecimal, four to a digit, partition 0 the lowest bit of the first digit;
//! digits at the end that are all 0 are left out. How many keys are in them may be left out. Before them stands, in 16
//! digits, the [digest](Layout::digest) of the files that the version is made of.
//!
//! What a node remembers is a file of lines, the last of which is the CRC32C of those before it.

use partage_core::keyspace::sharding::Slot;
use partage_service::dataset::node::{Layout, Pin, Served};
use partage_service::dataset::{Address, Claim, DatasetName, Right, Seat, VersionName};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Most partitions of a version: with more, what a node has of it might not fit into a value of gossip (8 KiB).
pub const PARTITIONS: u32 = 30_000;

/// Longest file of what a node remembers that is read: a hundred thousand datasets.
pub const REMEMBERED_BYTES: u64 = 64 << 20;

/// A key below the cluster's own, with what it says. Without, it is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// A node is at a seat.
    Node(Address, Option<Claim>),
    /// A node has these partitions of a version.
    Holding(Holding, Option<Held>),
    /// A node knows of an order.
    Pin(DatasetName, Address, Option<Pin>),
}

/// What a node has of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// How the version is divided, and of which files it is made.
    pub layout: Layout,
    /// Which partitions it has.
    pub partitions: BTreeSet<u32>,
    /// How many keys are in them all, if it tells.
    pub keys: Option<u64>,
}

/// Which node has partitions, and of which version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holding {
    /// The dataset that the partitions are of.
    pub dataset: DatasetName,
    /// The version that the partitions are of.
    pub version: VersionName,
    /// The address of the node that has them.
    pub address: Address,
}

/// A key or value that says nothing to this release.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{key:?} = {value:?} is nothing that a dataset node publishes: another program writes below this key"
)]
pub struct UnknownPresence {
    /// Below the cluster's own, cut to 300 characters.
    pub key: String,
    /// Cut to 100 characters.
    pub value: String,
}

/// The key of all keys of a cluster.
pub fn root(cluster: &DatasetName) -> String {
    format!("datasets/v1/{cluster}")
}

impl Presence {
    /// The key below [`root`], and the value.
    pub fn encode(&self) -> (String, Option<String>) {
        match self {
            Presence::Node(address, claim) => (format!("nodes/{address}"), claim.map(claim_text)),
            Presence::Holding(Holding { dataset, version, address }, held) => {
                let value = held.as_ref().map(holding_text);
                (format!("datasets/{dataset}/{version}/{address}"), value)
            }
            Presence::Pin(dataset, address, pin) => {
                (format!("pins/{dataset}/{address}"), pin.as_ref().map(pin_text))
            }
        }
    }

    /// What a key below [`root`] and its value say.
    ///
    /// # Errors
    /// [`UnknownPresence`].
    pub fn decode(key: &str, value: Option<&[u8]>) -> Result<Presence, UnknownPresence> {
        let text = value.map(std::str::from_utf8).transpose().ok();
        text.and_then(|value| read(key, value)).ok_or_else(|| UnknownPresence {
            key: key.chars().take(300).collect(),
            value: String::from_utf8_lossy(value.unwrap_or_default()).chars().take(100).collect(),
        })
    }
}

fn read(key: &str, value: Option<&str>) -> Option<Presence> {
    let parts: Vec<&str> = key.split('/').collect();
    let words = value.map(|value| value.split(' ').collect::<Vec<_>>());
    match (parts.as_slice(), words.as_deref()) {
        (["nodes", address], words) => {
            let claim = words.map(read_claim);
            Some(Presence::Node(Address::new(address).ok()?, transposed(claim)?))
        }
        (["datasets", dataset, version, address], words) => {
            let (dataset, version) = (dataset.parse().ok()?, version.parse().ok()?);
            let of = Holding { dataset, version, address: Address::new(address).ok()? };
            Some(Presence::Holding(of, transposed(words.map(read_holding))?))
        }
        (["pins", dataset, address], words) => {
            let pin = transposed(words.map(read_pin))?;
            Some(Presence::Pin(dataset.parse().ok()?, Address::new(address).ok()?, pin))
        }
        _ => None,
    }
}

/// Nothing stays nothing; what is there must be sound.
fn transposed<T>(found: Option<Option<T>>) -> Option<Option<T>> {
    match found {
        None => Some(None),
        Some(None) => None,
        Some(Some(found)) => Some(Some(found)),
    }
}

const RIGHTS: [(Right, &str); 3] =
    [(Right::Configured, "configured"), (Right::Settled, "settled"), (Right::Taken, "taken")];

fn claim_text(claim: Claim) -> String {
    let right = RIGHTS.iter().find(|(right, _)| *right == claim.right).map_or("taken", |(_, word)| word);
    format!("{} {right}", claim.seat)
}

fn read_claim(words: &[&str]) -> Option<Claim> {
    let [seat, word] = words else { return None };
    let right = RIGHTS.iter().find(|(_, known)| known == word)?.0;
    Some(Claim { seat: Seat(seat.parse().ok()?), right })
}

fn read_slot(text: &str) -> Option<Slot> {
    let (number, of) = text.split_once('/')?;
    Slot::new(number.parse().ok()?, of.parse().ok()?).ok()
}

fn pin_text(pin: &Pin) -> String {
    format!("{} {}", pin.order, pin.version.as_ref().map_or("", VersionName::as_str))
}

fn read_pin(words: &[&str]) -> Option<Pin> {
    let [order, version] = words else { return None };
    let version = if version.is_empty() { None } else { Some(version.parse().ok()?) };
    Some(Pin { order: order.parse().ok()?, version })
}

fn holding_text(Held { layout, partitions, keys }: &Held) -> String {
    let digits = partitions.last().map_or(0, |last| last / 4 + 1);
    let bit = |digit: u32, bit: u32| u32::from(partitions.contains(&(4 * digit + bit))) << bit;
    let digit = |at: u32| char::from_digit((0..4).map(|b| bit(at, b)).sum(), 16).unwrap_or('0');
    let which: String = (0..digits).map(digit).collect();
    let keys = keys.map_or(String::new(), |keys| format!(" {keys}"));
    format!("{} {} {:016x} {which}{keys}", layout.partitioner, layout.partitions, layout.digest)
}

fn read_holding(words: &[&str]) -> Option<Held> {
    let [partitioner, partitions, digest, which, keys @ ..] = words else { return None };
    let keys = match keys {
        [] => None,
        [keys] => Some(keys.parse().ok()?),
        _ => return None,
    };
    let (partitioner, partitions) = (partitioner.parse().ok()?, partitions.parse().ok()?);
    let layout = Layout { partitioner, partitions, digest: read_digest(digest)? };
    let is_sound = (1..=PARTITIONS).contains(&layout.partitions)
        && which.len() <= layout.partitions.div_ceil(4) as usize
        && which.bytes().all(|byte| byte.is_ascii_hexdigit());
    let digits = which.chars().map(|digit| digit.to_digit(16).unwrap_or(0));
    let bits = (0u32..)
        .zip(digits)
        .flat_map(|(at, digit)| (0..4).filter(move |bit| digit >> bit & 1 == 1).map(move |bit| 4 * at + bit));
    let held: BTreeSet<u32> = bits.collect();
    let is_sound = is_sound && held.last().is_none_or(|last| *last < layout.partitions);
    is_sound.then_some(Held { layout, partitions: held, keys })
}

fn read_digest(text: &str) -> Option<u64> {
    let is_one = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_one.then(|| u64::from_str_radix(text, 16).ok()).flatten()
}

/// What a node remembers over a restart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Remembered {
    /// The seat that the node had; after a restart it tries to take it again.
    pub seat: Option<Seat>,
    /// The other nodes that it saw last.
    pub peers: BTreeSet<Address>,
    /// What the node knew of each dataset, by its name.
    pub datasets: BTreeMap<DatasetName, Known>,
}

/// What a node remembers of a dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Known {
    /// The version that clients got last, and by which order; none: they got none.
    pub served: Option<Served>,
    /// The order that held.
    pub pin: Pin,
    /// The shards that a coordinator had ordered last.
    pub slots: BTreeSet<Slot>,
    /// `content-type` of its values: one line of text.
    pub content_type: Option<String>,
}

/// A file of what a node remembers that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "what is remembered is damaged or of a later release, at line {0}: delete the file; the node then goes by what its peers have"
)]
pub struct RememberedError(pub usize);

const HEADER: &str = "partage dataset node 1";

impl Remembered {
    /// As it is written to disk.
    pub fn encode(&self) -> String {
        let mut text = format!("{HEADER}\n");
        let version = |version: Option<&VersionName>| version.map_or(String::new(), VersionName::to_string);
        if let Some(seat) = self.seat {
            let _ = writeln!(text, "seat {seat}");
        }
        for peer in &self.peers {
            let _ = writeln!(text, "peer {peer}");
        }
        for (dataset, Known { served, pin, slots, content_type }) in &self.datasets {
            if let Some(content_type) = content_type {
                let _ = writeln!(text, "type {dataset} {content_type}");
            }
            if let Some(served) = served {
                let _ = writeln!(text, "served {dataset} {} {}", served.order, served.version);
            }
            if !slots.is_empty() {
                let slots: Vec<String> =
                    slots.iter().map(|slot| format!("{}/{}", slot.number(), slot.of())).collect();
                let _ = writeln!(text, "slots {dataset} {}", slots.join(" "));
            }
            if pin.order > 0 {
                let _ = writeln!(text, "pin {dataset} {} {}", pin.order, version(pin.version.as_ref()));
            }
        }
        let sum = crc32c::crc32c(text.as_bytes());
        let _ = writeln!(text, "crc32c {sum:08x}");
        text
    }

    /// What was written.
    ///
    /// # Errors
    /// [`RememberedError`], for any byte that differs.
    pub fn decode(text: &str) -> Result<Remembered, RememberedError> {
        let last = text.lines().count();
        let (body, sum) = text.rfind("crc32c ").map(|at| text.split_at(at)).ok_or(RememberedError(last))?;
        if sum != format!("crc32c {:08x}\n", crc32c::crc32c(body.as_bytes())) {
            return Err(RememberedError(last));
        }
        let mut found = Remembered::default();
        for (number, line) in (1..).zip(body.lines()) {
            found.read(number, line).ok_or(RememberedError(number))?;
        }
        Ok(found)
    }

    fn read(&mut self, number: usize, line: &str) -> Option<()> {
        match line.split(' ').collect::<Vec<_>>().as_slice() {
            _ if number == 1 => return (line == HEADER).then_some(()),
            ["seat", seat] => self.seat = Some(Seat(seat.parse().ok()?)),
            ["served", dataset, order, version] => {
                let served = Served { order: order.parse().ok()?, version: version.parse().ok()? };
                self.known(dataset)?.served = Some(served);
            }
            ["pin", dataset, pin @ ..] => {
                self.known(dataset)?.pin = read_pin(pin)?;
            }
            ["peer", address] => drop(self.peers.insert(Address::new(address).ok()?)),
            ["slots", dataset, slots @ ..] => {
                let slots: Option<BTreeSet<Slot>> = slots.iter().map(|slot| read_slot(slot)).collect();
                self.known(dataset)?.slots = slots?;
            }
            ["type", dataset, words @ ..] => {
                self.known(dataset)?.content_type = Some(words.join(" "));
            }
            _ => return None,
        }
        Some(())
    }

    fn known(&mut self, dataset: &str) -> Option<&mut Known> {
        Some(self.datasets.entry(dataset.parse().ok()?).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_service::dataset::Partitioner;

    fn holding() -> Holding {
        Holding {
            dataset: "names".parse().unwrap(),
            version: "2024".parse().unwrap(),
            address: Address::new("a:80").unwrap(),
        }
    }

    fn held(partitions: u32, which: &[u32]) -> Presence {
        let layout =
            Layout { partitioner: Partitioner::HadoopBytes, partitions, digest: 0xfeed_0000_0000_0001 };
        Presence::Holding(
            holding(),
            Some(Held { layout, partitions: which.iter().copied().collect(), keys: None }),
        )
    }

    fn counted(mut held: Presence, counted: u64) -> Presence {
        if let Presence::Holding(_, Some(Held { keys, .. })) = &mut held {
            *keys = Some(counted);
        }
        held
    }

    #[test]
    fn what_is_published_is_read_back() {
        let me = Address::new("[::1]:9599").unwrap();
        let claim = Claim { seat: Seat(3), right: Right::Settled };
        let pin = |version: Option<&str>| Pin { order: 7, version: version.map(|v| v.parse().unwrap()) };
        for (said, key, value) in [
            (Presence::Node(me.clone(), Some(claim)), "nodes/[::1]:9599", Some("3 settled")),
            (Presence::Node(me.clone(), None), "nodes/[::1]:9599", None),
            (
                held(20, &[0, 1, 2, 3, 19]),
                "datasets/names/2024/a:80",
                Some("hadoop-bytes 20 feed000000000001 f0008"),
            ),
            (held(20, &[]), "datasets/names/2024/a:80", Some("hadoop-bytes 20 feed000000000001 ")),
            (
                counted(held(20, &[3]), 0),
                "datasets/names/2024/a:80",
                Some("hadoop-bytes 20 feed000000000001 8 0"),
            ),
            (
                counted(held(20, &[]), 7),
                "datasets/names/2024/a:80",
                Some("hadoop-bytes 20 feed000000000001  7"),
            ),
            (
                Presence::Pin("names".parse().unwrap(), me.clone(), Some(pin(Some("1")))),
                "pins/names/[::1]:9599",
                Some("7 1"),
            ),
            (
                Presence::Pin("names".parse().unwrap(), me, Some(pin(None))),
                "pins/names/[::1]:9599",
                Some("7 "),
            ),
        ] {
            assert_eq!(said.encode(), (key.to_owned(), value.map(str::to_owned)));
            assert_eq!(Presence::decode(key, value.map(str::as_bytes)), Ok(said));
        }
    }

    #[test]
    fn partitions_of_the_most_are_told_apart() {
        for which in (0..PARTITIONS).step_by(997).chain([1, 2, 3, 4, PARTITIONS - 1]) {
            let (key, value) = held(PARTITIONS, &[which]).encode();
            let value = value.unwrap();
            assert!(value.len() <= 8 << 10);
            assert_eq!(Presence::decode(&key, Some(value.as_bytes())), Ok(held(PARTITIONS, &[which])));
        }
    }

    #[test]
    fn what_is_strange_is_told_and_taken_for_nothing() {
        for (key, value) in [
            ("nodes/a", "1 settled"),
            ("nodes/a:80", "1"),
            ("nodes/a:80", "1 king"),
            ("nodes/a:80/b", "1 settled"),
            ("datasets/names/2024/a:80", "java-bytes 4 f"),
            ("datasets/names/2024/a:80", "java-bytes 4 feed00000000001 f"),
            ("datasets/names/2024/a:80", "java-bytes 4 +eed000000000001 f"),
            ("datasets/names/2024/a:80", "md5 20 feed000000000001 f"),
            ("datasets/names/2024/a:80", "java-bytes 0 feed000000000001 "),
            ("datasets/names/2024/a:80", "java-bytes 30001 feed000000000001 f"),
            ("datasets/names/2024/a:80", "java-bytes 5 feed000000000001 04"),
            ("datasets/names/2024/a:80", "java-bytes 4 feed000000000001 ff"),
            ("datasets/names/2024/a:80", "java-bytes 4 feed000000000001 g"),
            ("datasets/names/2024/a:80", "java-bytes 4 feed000000000001 f -1"),
            ("datasets/names/2024/a:80", "java-bytes 4 feed000000000001 f 1 2"),
            ("datasets/na.mes/2024/a:80", "java-bytes 4 feed000000000001 f"),
            ("pins/names/a:80", "x 1"),
            ("other", ""),
        ] {
            let told = Presence::decode(key, Some(value.as_bytes())).unwrap_err().to_string();
            assert!(told.contains(key), "{told}");
        }
        assert!(Presence::decode("nodes/a:80", Some(&[0xff])).is_err());
    }

    #[test]
    fn d8_what_is_remembered_is_read_back_and_every_flipped_bit_is_found() {
        let served = Served { order: 7, version: "2024".parse().unwrap() };
        let (pin, other) =
            (Pin { order: 7, version: None }, Pin { order: 1, version: Some("1".parse().unwrap()) });
        let datasets = [
            ("names".parse().unwrap(), Known { served: Some(served), pin, ..Known::default() }),
            (
                "other".parse().unwrap(),
                Known {
                    served: None,
                    pin: other,
                    slots: [(0, 6), (3, 6), (7, 12)]
                        .map(|(number, of)| Slot::new(number, of).unwrap())
                        .into(),
                    content_type: Some("text/plain; charset=utf-8".to_owned()),
                },
            ),
        ];
        let peers = ["b:80", "[::1]:9599"].map(|peer| Address::new(peer).unwrap()).into();
        let remembered = Remembered { seat: Some(Seat(4)), peers, datasets: datasets.into() };
        let text = remembered.encode();
        assert_eq!(Remembered::decode(&text), Ok(remembered));
        assert_eq!(Remembered::decode(&Remembered::default().encode()), Ok(Remembered::default()));
        for bit in 0..8 * text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let damaged = String::from_utf8(bytes);
            assert!(damaged.is_err() || Remembered::decode(&damaged.unwrap()).is_err(), "bit {bit}");
        }
        for cut in 0..text.len() {
            assert!(Remembered::decode(&text[..cut]).is_err(), "cut at {cut}");
        }
    }
}
