//! Datagrams under a shared key: the sender seals them, the receiver opens each once.
//!
//! Each datagram is authenticated, numbered and has a time: the receiver refuses one that was changed, came before,
//! or is from another time.
//!
//! ```text
//! PGS1 │ id of the key, 4 │ sender, 16 │ number, 8 │ ms since 1970, 8 │ sealed: part, 1; what is said │ tag, 16
//! └──────────────────────── in the clear, and covered by the tag ─────┘
//! ```
//!
//! The sender is a random number of this run of a process, and has a key of its own, derived from the shared one and
//! from the cluster's name: so the number of a datagram can be its nonce, and clusters with the same key refuse each
//! other's.
//!
//! **Once**: the receiver keeps each sender's highest number, and which of the last [`WINDOW`] came. **In time**: it
//! refuses a time that is off by more than [`SKEW`], so it can forget a sender that was silent for twice that, and
//! memory has a bound: only holders of the key get so far. A datagram that is held back and let through within that
//! time is accepted once, as if the network had been slow.
//!
//! A message that is too long for one sealed datagram goes in two.

use std::collections::BTreeMap;
use std::time::Duration;

use ring::aead::{Aad, LessSafeKey, Nonce};

use super::keys::{ID_BYTES, Keys};
use super::refused::Reason;

/// The largest datagram that UDP takes, and the largest message of the protocol.
pub(super) const DATAGRAM_BYTES: usize = 65_507;

/// Clocks of two processes may differ by so much, together with the time on the way.
pub(super) const SKEW: Duration = Duration::from_secs(60);

/// Numbers that may come in another order.
const WINDOW: u64 = 128;

/// Senders that are known at a time: runs of processes within two minutes.
const MOST_SENDERS: usize = 4_096;

/// Halves of messages that wait for the other one: 4 MiB.
const MOST_HALVES: usize = 64;

/// How a sealed datagram begins. The protocol's own begins otherwise.
const MAGIC: [u8; 4] = *b"PGS1";
const HEADER_BYTES: usize = 4 + ID_BYTES + 16 + 8 + 8;
const TAG_BYTES: usize = 16;
const MOST_SAID: usize = DATAGRAM_BYTES - HEADER_BYTES - 1 - TAG_BYTES;

/// Which part of a message is in a datagram.
const WHOLE: u8 = 0;
const FIRST: u8 = 1;
const SECOND: u8 = 2;

/// Whether a datagram says that it is sealed.
pub(super) fn is_sealed(datagram: &[u8]) -> bool {
    datagram.starts_with(&MAGIC)
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// Seals what one run of a process sends.
pub(super) struct Sealer {
    cluster: String,
    sender: u128,
    last: u64,
}

impl Sealer {
    /// `sender` is random and unique.
    pub fn new(cluster: String, sender: u128) -> Sealer {
        Sealer { cluster, sender, last: 0 }
    }

    /// The datagrams of a message: one, or two.
    pub fn seal(&mut self, keys: &Keys, said: &[u8], unix_ms: u64) -> Vec<Vec<u8>> {
        if said.len() <= MOST_SAID {
            return vec![self.part(keys, WHOLE, said, unix_ms)];
        }
        let (first, second) = said.split_at(said.len() / 2);
        vec![self.part(keys, FIRST, first, unix_ms), self.part(keys, SECOND, second, unix_ms)]
    }

    fn part(&mut self, keys: &Keys, part: u8, said: &[u8], unix_ms: u64) -> Vec<u8> {
        self.last += 1;
        let (id, key) = keys.sealing(&self.cluster, self.sender);
        let mut datagram = Vec::with_capacity(HEADER_BYTES + 1 + said.len() + TAG_BYTES);
        datagram.extend(MAGIC);
        datagram.extend(id);
        datagram.extend(self.sender.to_be_bytes());
        datagram.extend(self.last.to_be_bytes());
        datagram.extend(unix_ms.to_be_bytes());
        let mut sealed = Vec::with_capacity(1 + said.len() + TAG_BYTES);
        sealed.push(part);
        sealed.extend(said);
        let done = key.seal_in_place_append_tag(nonce(self.last), Aad::from(&datagram), &mut sealed);
        done.expect("a datagram is shorter than what the cipher takes");
        datagram.extend(sealed);
        datagram
    }
}

/// One sender's numbers so far.
#[derive(Debug, Clone, Copy)]
struct ReplayWindow {
    highest: u64,
    /// Bit n: `highest - n` came.
    came: u128,
    /// The latest time in its datagrams, in ms since 1970: it shows which senders fell silent.
    sent_ms: u64,
}

impl ReplayWindow {
    /// Whether a number comes for the first time; notes it.
    fn is_first(&mut self, number: u64) -> bool {
        if let Some(ahead) = number.checked_sub(self.highest).filter(|ahead| *ahead > 0) {
            let moved = u32::try_from(ahead).ok().and_then(|ahead| self.came.checked_shl(ahead));
            self.came = moved.unwrap_or(0) | 1;
            self.highest = number;
            return true;
        }
        let behind = self.highest - number;
        let bit = 1u128 << (behind % WINDOW);
        let is_first = behind < WINDOW && self.came & bit == 0;
        self.came |= if is_first { bit } else { 0 };
        is_first
    }
}

/// Half of a message.
struct Half {
    part: u8,
    said: Vec<u8>,
    sent_ms: u64,
}

/// Opens the datagrams of others, each once.
pub(super) struct Opener {
    cluster: String,
    senders: BTreeMap<u128, ReplayWindow>,
    /// By sender and by the number of the first half.
    halves: BTreeMap<(u128, u64), Half>,
}

struct Header {
    id: [u8; ID_BYTES],
    sender: u128,
    number: u64,
    sent_ms: u64,
}

impl Header {
    fn read(datagram: &[u8]) -> Option<Header> {
        let mut rest = datagram.strip_prefix(&MAGIC)?;
        Some(Header {
            id: take(&mut rest)?,
            sender: u128::from_be_bytes(take(&mut rest)?),
            number: u64::from_be_bytes(take(&mut rest)?),
            sent_ms: u64::from_be_bytes(take(&mut rest)?),
        })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (bytes, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(*bytes)
}

impl Opener {
    pub fn new(cluster: String) -> Opener {
        Opener { cluster, senders: BTreeMap::new(), halves: BTreeMap::new() }
    }

    /// What a datagram says; nothing yet if it is half of a message.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn open(&mut self, keys: &Keys, datagram: &[u8], unix_ms: u64) -> Result<Option<Vec<u8>>, Reason> {
        if !is_sealed(datagram) {
            return Err(Reason::Unsealed);
        }
        if datagram.len() < HEADER_BYTES + 1 + TAG_BYTES || datagram.len() > DATAGRAM_BYTES {
            return Err(Reason::Damaged);
        }
        let header = Header::read(datagram).ok_or(Reason::Damaged)?;
        let key = keys.opening(header.id, &self.cluster, header.sender).ok_or(Reason::OtherKey)?;
        let (part, said) = unseal(&key, header.number, datagram).ok_or(Reason::Damaged)?;
        // From here on: the sender has the key.
        if header.sent_ms.abs_diff(unix_ms) > ms(SKEW) {
            return Err(Reason::Clock);
        }
        self.once(&header, unix_ms)?;
        Ok(self.whole(&header, part, said, unix_ms))
    }

    fn once(&mut self, header: &Header, unix_ms: u64) -> Result<(), Reason> {
        if !self.senders.contains_key(&header.sender) && self.senders.len() >= MOST_SENDERS {
            self.senders.retain(|_, heard| heard.sent_ms.saturating_add(2 * ms(SKEW)) > unix_ms);
            if self.senders.len() >= MOST_SENDERS {
                return Err(Reason::TooMany);
            }
        }
        let unused = ReplayWindow { highest: 0, came: 0, sent_ms: 0 };
        let heard = self.senders.entry(header.sender).or_insert(unused);
        if header.number == 0 || !heard.is_first(header.number) {
            return Err(Reason::Again);
        }
        heard.sent_ms = heard.sent_ms.max(header.sent_ms);
        Ok(())
    }

    /// Puts the halves of a message together.
    fn whole(&mut self, header: &Header, part: u8, said: Vec<u8>, unix_ms: u64) -> Option<Vec<u8>> {
        let first = match part {
            WHOLE => return Some(said),
            FIRST => header.number,
            _ => header.number.saturating_sub(1),
        };
        let at = (header.sender, first);
        match self.halves.remove(&at) {
            Some(other) if other.part != part => {
                let (mut whole, second) = if part == FIRST { (said, other.said) } else { (other.said, said) };
                whole.extend(second);
                Some(whole)
            }
            _ => {
                if self.halves.len() >= MOST_HALVES {
                    self.halves.retain(|_, half| half.sent_ms.saturating_add(ms(SKEW)) > unix_ms);
                }
                let oldest = self.halves.iter().min_by_key(|(_, half)| half.sent_ms).map(|(at, _)| *at);
                if let Some(oldest) = oldest.filter(|_| self.halves.len() >= MOST_HALVES) {
                    self.halves.remove(&oldest);
                }
                self.halves.insert(at, Half { part, said, sent_ms: header.sent_ms });
                None
            }
        }
    }
}

fn unseal(key: &LessSafeKey, number: u64, datagram: &[u8]) -> Option<(u8, Vec<u8>)> {
    let (header, sealed) = datagram.split_at_checked(HEADER_BYTES)?;
    let mut sealed = sealed.to_vec();
    let opened = key.open_in_place(nonce(number), Aad::from(header), &mut sealed).ok()?;
    let (part, said) = opened.split_first()?;
    (*part <= SECOND).then(|| (*part, said.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: u64 = 1_800_000_000_000;

    fn keys(seeds: &[u8]) -> Keys {
        let line =
            |seed: &u8| (0..32).map(|at: u8| format!("{:02x}", seed.wrapping_add(at))).collect::<String>();
        Keys::parse(&seeds.iter().map(line).collect::<Vec<_>>().join("\n")).unwrap()
    }

    fn pair() -> (Sealer, Opener) {
        (Sealer::new("one".to_owned(), 7), Opener::new("one".to_owned()))
    }

    #[test]
    fn z5_what_is_sealed_is_heard_once_and_in_its_cluster_only() {
        let ours = keys(&[1]);
        let (mut sealer, mut opener) = pair();
        let sent = sealer.seal(&ours, b"hello", NOW);
        assert_eq!(sent.len(), 1);
        assert!(!sent[0].windows(5).any(|bytes| bytes == b"hello"), "it is not in the clear");
        assert_eq!(opener.open(&ours, &sent[0], NOW), Ok(Some(b"hello".to_vec())));
        assert_eq!(opener.open(&ours, &sent[0], NOW), Err(Reason::Again));
        assert_eq!(Opener::new("two".to_owned()).open(&ours, &sent[0], NOW), Err(Reason::Damaged));
        assert_eq!(Opener::new("one".to_owned()).open(&keys(&[2]), &sent[0], NOW), Err(Reason::OtherKey));
        assert_eq!(opener.open(&ours, b"\x53\xb0\x01\x00", NOW), Err(Reason::Unsealed));
        assert_eq!(opener.open(&ours, b"PGS1", NOW), Err(Reason::Damaged));
    }

    #[test]
    fn z5_a_key_is_changed_without_a_gap() {
        let steps = [keys(&[1]), keys(&[1, 2]), keys(&[2, 1]), keys(&[2])];
        // At each step a process has changed over and another has not yet.
        for both in steps.windows(2) {
            for (from, to) in [(&both[0], &both[1]), (&both[1], &both[0])] {
                let (mut sealer, mut opener) = pair();
                for (sends, hears) in [(from, to), (to, from), (from, from), (to, to)] {
                    let sent = sealer.seal(sends, b"hello", NOW);
                    assert_eq!(opener.open(hears, &sent[0], NOW), Ok(Some(b"hello".to_vec())));
                }
            }
        }
        let (mut sealer, mut opener) = pair();
        let sent = sealer.seal(&steps[0], b"hello", NOW);
        assert_eq!(
            opener.open(&steps[3], &sent[0], NOW),
            Err(Reason::OtherKey),
            "both steps at once are a gap"
        );
    }

    #[test]
    fn z5_clocks_may_differ_by_a_minute_and_no_more() {
        let ours = keys(&[1]);
        let (mut sealer, mut opener) = pair();
        for (sent, is_heard) in [
            (NOW - 60_000, true),
            (NOW + 60_000, true),
            (NOW - 60_001, false),
            (NOW + 60_001, false),
            (0, false),
            (u64::MAX, false),
        ] {
            let datagram = sealer.seal(&ours, b"hello", sent);
            let heard = opener.open(&ours, &datagram[0], NOW);
            assert_eq!(heard.is_ok(), is_heard, "{sent}: {heard:?}");
            assert!(is_heard || heard == Err(Reason::Clock));
        }
    }

    #[test]
    fn a_message_that_fills_a_datagram_goes_in_two_in_any_order() {
        let ours = keys(&[1]);
        let (mut sealer, mut opener) = pair();
        for length in [0, 1, MOST_SAID, MOST_SAID + 1, DATAGRAM_BYTES] {
            let said: Vec<u8> = (0..length).map(|at| at as u8).collect();
            for is_turned in [false, true] {
                let mut sent = sealer.seal(&ours, &said, NOW);
                assert_eq!(sent.len(), if length > MOST_SAID { 2 } else { 1 });
                assert!(sent.iter().all(|datagram| datagram.len() <= DATAGRAM_BYTES));
                if is_turned {
                    sent.reverse();
                }
                let heard: Vec<_> = sent.iter().map(|one| opener.open(&ours, one, NOW).unwrap()).collect();
                assert!(heard.iter().rev().skip(1).all(Option::is_none));
                assert_eq!(heard.last().unwrap().as_deref(), Some(&said[..]));
            }
        }
    }

    #[test]
    fn memory_has_a_bound_whoever_sends() {
        let ours = keys(&[1]);
        let mut opener = Opener::new("one".to_owned());
        let said = vec![1; DATAGRAM_BYTES];
        for sender in 0..2 * MOST_HALVES as u128 {
            let mut sealer = Sealer::new("one".to_owned(), sender);
            assert_eq!(opener.open(&ours, &sealer.seal(&ours, &said, NOW)[0], NOW), Ok(None));
        }
        assert_eq!(opener.halves.len(), MOST_HALVES);
        let hear = |opener: &mut Opener, sender: u128, now: u64| {
            opener.open(&ours, &Sealer::new("one".to_owned(), sender).seal(&ours, b"", now)[0], now)
        };
        for sender in 1_000..1_000 + MOST_SENDERS as u128 {
            let _ = hear(&mut opener, sender, NOW);
        }
        assert_eq!(opener.senders.len(), MOST_SENDERS);
        assert_eq!(hear(&mut opener, 9_999_999, NOW), Err(Reason::TooMany));
        // Those that are silent are forgotten, and what they sent is too old by then.
        assert_eq!(hear(&mut opener, 9_999_999, NOW + 120_000), Ok(Some(Vec::new())));
        assert_eq!(opener.senders.len(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Not one bit can be other than it was sealed, wherever it is.
        #[test]
        fn z5_any_flipped_bit_is_refused(said in proptest::collection::vec(any::<u8>(), 0..200), at in any::<prop::sample::Index>()) {
            let ours = keys(&[1, 2]);
            let (mut sealer, mut opener) = pair();
            let mut sent = sealer.seal(&ours, &said, NOW).remove(0);
            let bit = at.index(sent.len() * 8);
            sent[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(opener.open(&ours, &sent, NOW).is_err());
            sent[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(opener.open(&ours, &sent, NOW), Ok(Some(said)), "and a forged one does not take its number");
        }

        /// Nor can it be cut, or added to.
        #[test]
        fn z5_what_is_cut_or_longer_is_refused(said in proptest::collection::vec(any::<u8>(), 0..200), cut in any::<prop::sample::Index>(), more in proptest::collection::vec(any::<u8>(), 1..20)) {
            let ours = keys(&[1]);
            let (mut sealer, mut opener) = pair();
            let sent = sealer.seal(&ours, &said, NOW).remove(0);
            prop_assert!(opener.open(&ours, &sent[..cut.index(sent.len())], NOW).is_err());
            prop_assert!(opener.open(&ours, &[sent.clone(), more].concat(), NOW).is_err());
        }

        /// Whatever comes in whichever order, nothing is heard twice, and what comes in time is heard.
        #[test]
        fn z5_nothing_is_heard_twice(order in proptest::collection::vec(0usize..300, 1..400)) {
            let ours = keys(&[1]);
            let (mut sealer, mut opener) = pair();
            let sent: Vec<Vec<u8>> = (0..300).map(|_| sealer.seal(&ours, b"x", NOW).remove(0)).collect();
            let mut heard = std::collections::BTreeSet::new();
            let mut highest = None;
            for at in order {
                let is_late = highest.is_some_and(|highest: usize| at + (WINDOW as usize) <= highest);
                match opener.open(&ours, &sent[at], NOW) {
                    Ok(_) => prop_assert!(heard.insert(at), "{} twice", at),
                    Err(reason) => {
                        prop_assert_eq!(reason, Reason::Again);
                        prop_assert!(is_late || heard.contains(&at), "{} was not heard", at);
                    }
                }
                highest = highest.max(Some(at));
            }
        }

        /// What is no datagram of ours is refused, and nothing panics.
        #[test]
        fn garbage_is_refused(garbage in proptest::collection::vec(any::<u8>(), 0..300), is_marked in any::<bool>()) {
            let ours = keys(&[1]);
            let datagram = if is_marked { [&MAGIC[..], &garbage].concat() } else { garbage };
            prop_assert!(pair().1.open(&ours, &datagram, NOW).is_err());
        }
    }
}
