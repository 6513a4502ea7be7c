//! The keys that the processes of a cluster share, in a file.
//!
//! ```text
//! # openssl rand -hex 32
//! 6f1c…  the first seals what this process sends
//! 0a4e…  a second one opens, too: for the time in which not all have changed over
//! ```
//!
//! **To change the key without a gap**: write the new one behind the old one everywhere, then before it, then take the
//! old one out. At each of these steps all open what all seal. A running process reads the file again.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use ring::aead::{CHACHA20_POLY1305, LessSafeKey, UnboundKey};
use ring::digest::{SHA256, digest};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};

/// Bytes of a key.
const KEY_BYTES: usize = 32;

/// Keys of a file: the one that seals, and one beside it while they are changed.
const MOST_KEYS: usize = 2;

/// A file of keys is a few lines.
const FILE_BYTES: u64 = 4 << 10;

/// Bytes of a key's id in each datagram: of a hash, which does not reveal the key.
pub(super) const ID_BYTES: usize = 4;

/// Why a file has no usable keys.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// It cannot be read.
    #[error(
        "the keys of gossip, {path}: {source}: make a file with `openssl rand -hex 32 > {path}; chmod 600 {path}`"
    )]
    Unreadable {
        /// The file of gossip keys that could not be read.
        path: PathBuf,
        /// The error that the operating system gave.
        source: std::io::Error,
    },
    /// Others can read or change it.
    #[error("the keys of gossip, {path}: mode {mode:03o} lets others read or change it: `chmod 600 {path}`")]
    Open {
        /// The file of gossip keys that is not private to its owner.
        path: PathBuf,
        /// The permission bits that it has now.
        mode: u32,
    },
    /// It has no key, more than two, or something in it is no key.
    #[error("the keys of gossip, {path}: {what}")]
    Malformed {
        /// The file that could not be used as a file of gossip keys.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

/// What is derived from one key.
#[derive(Clone)]
struct Shared {
    id: [u8; ID_BYTES],
    root: Prk,
}

/// One key, or two while they are changed. Never shown.
#[derive(Clone)]
pub struct Keys {
    keys: Vec<Shared>,
    /// A hash of all keys: whether a file that was read again has changed.
    print: [u8; 32],
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} keys)", self.keys.len())
    }
}

impl PartialEq for Keys {
    fn eq(&self, other: &Self) -> bool {
        self.print == other.print
    }
}

impl Keys {
    /// Reads a file of keys.
    ///
    /// # Errors
    /// [`KeysError`]: it cannot be read, others can read or change it, or something in it is no key.
    pub fn read(path: &Path) -> Result<Keys, KeysError> {
        let unreadable = |source| KeysError::Unreadable { path: path.to_owned(), source };
        let file = std::fs::File::open(path).map_err(unreadable)?;
        guarded(path, &file.metadata().map_err(unreadable)?)?;
        let mut text = String::new();
        let malformed = |what: String| KeysError::Malformed { path: path.to_owned(), what };
        let read = file.take(FILE_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
        if read as u64 > FILE_BYTES {
            return Err(malformed(format!(
                "it is longer than {FILE_BYTES} bytes: a key is a line of 64 digits"
            )));
        }
        Keys::parse(&text).map_err(malformed)
    }

    /// The keys in a text, one a line.
    pub(super) fn parse(text: &str) -> Result<Keys, String> {
        let mut keys: Vec<Shared> = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some(bytes) = digits(line) else {
                let length = line.chars().count();
                return Err(format!(
                    "line {number} is no key: it has {length} characters, and a key is 64 hexadecimal digits, as of \
                     `openssl rand -hex 32`"
                ));
            };
            if bytes.iter().all(|byte| *byte == bytes[0]) {
                return Err(format!(
                    "line {number} is one byte again and again: make a key with `openssl rand -hex 32`"
                ));
            }
            let key = Shared::new(&bytes);
            if keys.iter().any(|other| other.id == key.id) {
                return Err(format!("line {number} is the key of a line before it: take one of the two out"));
            }
            keys.push(key);
        }
        match keys.len() {
            0 => Err("there is no key in it: write one with `openssl rand -hex 32`".to_owned()),
            1..=MOST_KEYS => Ok(Keys { print: print(&keys), keys }),
            count => Err(format!(
                "it has {count} keys: {MOST_KEYS} at the most, the one that seals first; take out those that no process \
                 seals with any more"
            )),
        }
    }

    /// The key that seals for the sender of that name in that cluster, and its id.
    pub(super) fn sealing(&self, cluster: &str, sender: u128) -> ([u8; ID_BYTES], LessSafeKey) {
        let first = &self.keys[0];
        (first.id, first.derive(cluster, sender))
    }

    /// The key that opens what the sender of that name has sealed, if it is one of these.
    pub(super) fn opening(&self, id: [u8; ID_BYTES], cluster: &str, sender: u128) -> Option<LessSafeKey> {
        let key = self.keys.iter().find(|key| key.id == id)?;
        Some(key.derive(cluster, sender))
    }
}

impl Shared {
    fn new(bytes: &[u8; KEY_BYTES]) -> Shared {
        let root = Salt::new(HKDF_SHA256, b"partage gossip 1").extract(bytes);
        let mut id = [0; ID_BYTES];
        let length = Length(ID_BYTES);
        root.expand(&[b"id"], length)
            .and_then(|okm| okm.fill(&mut id))
            .expect("4 bytes are less than HKDF can give");
        Shared { id, root }
    }

    /// Each run of each sender has a key of its own: so numbers that begin anew with each run are never used twice with
    /// one key.
    fn derive(&self, cluster: &str, sender: u128) -> LessSafeKey {
        let sender = sender.to_be_bytes();
        let info: [&[u8]; 3] = [b"datagrams", &sender, cluster.as_bytes()];
        let derived = self.root.expand(&info, &CHACHA20_POLY1305).map(UnboundKey::from);
        LessSafeKey::new(derived.expect("32 bytes are less than HKDF can give"))
    }
}

struct Length(usize);

impl ring::hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

fn print(keys: &[Shared]) -> [u8; 32] {
    let mut all = Vec::new();
    for key in keys {
        let mut part = [0; 32];
        let filled = key.root.expand(&[b"print"], Length(32)).and_then(|okm| okm.fill(&mut part));
        filled.expect("32 bytes are less than HKDF can give");
        all.extend(part);
    }
    let mut print = [0; 32];
    print.copy_from_slice(digest(&SHA256, &all).as_ref());
    print
}

fn digits(line: &str) -> Option<[u8; KEY_BYTES]> {
    let is_long_enough = line.len() == 2 * KEY_BYTES && line.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut bytes = [0; KEY_BYTES];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(line.get(2 * at..2 * at + 2).filter(|_| is_long_enough)?, 16).ok()?;
    }
    Some(bytes)
}

/// Refuses a file that its group can change, or that others can read, change or run.
#[cfg(unix)]
fn guarded(path: &Path, about: &std::fs::Metadata) -> Result<(), KeysError> {
    use std::os::unix::fs::PermissionsExt;
    let mode = about.permissions().mode() & 0o777;
    if mode & 0o027 != 0 {
        return Err(KeysError::Open { path: path.to_owned(), mode });
    }
    Ok(())
}

#[cfg(not(unix))]
fn guarded(_path: &Path, _about: &std::fs::Metadata) -> Result<(), KeysError> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const ONE: &str = "6f1c5d0a9b8e7f60112233445566778899aabbccddeeff00a1b2c3d4e5f60718";
    const TWO: &str = "0a4e5d0a9b8e7f60112233445566778899aabbccddeeff00a1b2c3d4e5f60718";

    #[test]
    fn a_file_has_one_key_or_two_and_says_what_is_wrong_with_it() {
        assert_eq!(Keys::parse(ONE).unwrap().keys.len(), 1);
        let both = Keys::parse(&format!("# ours\n\n {ONE} \n{}\n", TWO.to_uppercase())).unwrap();
        assert_eq!(both.keys.len(), 2);
        for (text, expected) in [
            (String::new(), "no key in it"),
            ("# later".to_owned(), "no key in it"),
            (ONE[1..].to_owned(), "line 1 is no key: it has 63 characters"),
            (format!("{ONE}\n{}x", &TWO[1..]), "line 2 is no key"),
            (format!("{ONE}\n{ONE}"), "line 2 is the key of a line before it"),
            ("00".repeat(32), "line 1 is one byte again and again"),
            (format!("{ONE}\n{TWO}\n{}", ONE.replace('6', "7")), "it has 3 keys"),
        ] {
            let told = Keys::parse(&text).unwrap_err();
            assert!(told.contains(expected) && !told.contains(&ONE[..16]), "{told}");
        }
    }

    #[test]
    fn keys_are_told_apart_and_never_shown() {
        let (one, two) = (Keys::parse(ONE).unwrap(), Keys::parse(TWO).unwrap());
        assert!(one == Keys::parse(&format!("# the same\n{ONE}\n")).unwrap() && one != two);
        assert_ne!(one.keys[0].id, two.keys[0].id);
        assert_eq!(format!("{one:?}"), "(1 keys)");
    }

    #[test]
    fn a_file_that_others_can_read_is_refused_and_one_that_is_not_there_says_how_to_make_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gossip.key");
        let told = Keys::read(&path).unwrap_err().to_string();
        assert!(told.contains("gossip.key") && told.contains("openssl rand -hex 32"), "{told}");
        std::fs::write(&path, ONE).unwrap();
        for (mode, is_open) in
            [(0o600, false), (0o400, false), (0o640, false), (0o644, true), (0o660, true), (0o604, true)]
        {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            match Keys::read(&path) {
                Ok(keys) => assert!(!is_open && keys.keys.len() == 1, "{mode:o}"),
                Err(error) => {
                    assert!(is_open && error.to_string().contains("chmod 600"), "{mode:o}: {error}")
                }
            }
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, "#".repeat(5_000)).unwrap();
        assert!(Keys::read(&path).unwrap_err().to_string().contains("longer than 4096 bytes"));
    }
}
