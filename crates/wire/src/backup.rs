//! A backup: a dump in blocks with checksums, so that a file which was cut, flipped or mixed up is told from a whole
//! one, and where.
//!
//! ```text
//! partage backup 1
//! 3f0c9a11 {"taken_ms":1790000000000,"by":"0.1.0"}
//! 8be21d07 {"format":1,"cluster":{"next_incarnation":7,…"nodes":[   what comes before the first record of a list
//! 51aa0be4 {"id":"n1",…}                                        a record; a large one in pieces of 64 KiB
//! 0c7714e2 ,{"id":"n2",…}
//! …
//! 9d2c4e5f                                                      an empty block: the end
//! ```
//!
//! A line is a block: eight hex digits, a space, the text. The digits are the CRC32C of the block's number (eight
//! bytes, little-endian, from 0; its highest bit is set when the block goes on with the record of the one before it) and
//! its text; so a block that was left out, doubled or moved is found like a flipped bit. What comes without the last, empty block was cut. The texts of all blocks but the first, one after another,
//! are the document of [`crate::json::Dump`], and its format is counted there. As each record has blocks of its own,
//! a flipped bit costs one record: [`salvage`] gives the rest.
//!
//! Not done: compression (`gzip` does it, and `partage restore` would hide from whom it comes), one checksum at the
//! end (it would not say where).

mod parts;

use parts::{Mended, Parts};
use serde::{Deserialize, Serialize};

/// The first line; the number is that of this form.
const FIRST: &str = "partage backup 1\n";

/// What the first line of every such form begins with.
const KIND: &str = "partage backup ";

/// Text in one block.
const BLOCK_BYTES: usize = 64 << 10;

/// Set in a block's number when it goes on with the record of the block before it.
const GOES_ON: u64 = 1 << 63;

/// How many blocks a damaged line may stand for: one whose line break was changed stands for two.
const LOST_IN_A_LINE: u64 = 2;

/// Hex digits of the checksum, and a space.
const PREFIX_BYTES: usize = 9;

/// What is said about the dump, in the first block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// When it was taken, in milliseconds of Unix time, by the clock of who took it.
    pub taken_ms: u64,
    /// The version of the program that took it.
    pub by: String,
}

/// A file that is no backup, or not all of one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at byte {at}: {what}")]
pub struct BackupError {
    /// Where.
    pub at: usize,
    /// What is wrong there.
    pub what: String,
}

/// Writes a backup, piece by piece.
#[derive(Debug)]
pub struct Sealer {
    number: u64,
    waiting: Vec<u8>,
    parts: Parts,
    /// What waits goes on with the record of the last block.
    goes_on: bool,
}

impl Sealer {
    /// Begins one; the bytes are what the file begins with.
    pub fn begin(label: &Label) -> (Sealer, Vec<u8>) {
        let mut sealer = Sealer { number: 0, waiting: Vec::new(), parts: Parts::default(), goes_on: false };
        let mut file = FIRST.as_bytes().to_vec();
        let by = serde_json::Value::from(label.by.as_str());
        let label = format!("{{\"taken_ms\":{},\"by\":{by}}}", label.taken_ms);
        sealer.block(label.as_bytes(), &mut file);
        (sealer, file)
    }

    /// The next bytes of the document; gives back what to write to the file now.
    pub fn add(&mut self, document: &[u8]) -> Vec<u8> {
        let mut file = Vec::new();
        for byte in document {
            // A line break in JSON is a space: those within texts are written as \n.
            let byte = if *byte == b'\n' { b' ' } else { *byte };
            self.waiting.push(byte);
            let ends = self.parts.ends_with(byte);
            if ends || self.waiting.len() == BLOCK_BYTES {
                let waiting = std::mem::take(&mut self.waiting);
                self.block(&waiting, &mut file);
                self.goes_on = !ends;
            }
        }
        file
    }

    /// There is no more; the bytes are what the file ends with.
    pub fn end(mut self) -> Vec<u8> {
        let mut file = Vec::new();
        let rest = std::mem::take(&mut self.waiting);
        if !rest.is_empty() {
            self.block(&rest, &mut file);
        }
        self.goes_on = false;
        self.block(b"", &mut file);
        file
    }

    fn block(&mut self, text: &[u8], file: &mut Vec<u8>) {
        let number = if self.goes_on { self.number | GOES_ON } else { self.number };
        file.extend(format!("{:08x} ", checksum(number, text)).as_bytes());
        file.extend(text);
        file.push(b'\n');
        self.number += 1;
    }
}

/// Whether that is meant to be a backup, whole or not.
pub fn is_backup(file: &[u8]) -> bool {
    file.starts_with(KIND.as_bytes())
}

/// The label and the document of a backup.
///
/// # Errors
/// Says at which byte the first thing is that is wrong.
pub fn open(file: &[u8]) -> Result<(Label, Vec<u8>), BackupError> {
    let error = |at: usize, what: &str| BackupError { at, what: what.to_owned() };
    if !file.starts_with(FIRST.as_bytes()) {
        let what = match () {
            () if FIRST.as_bytes().starts_with(file) => "the file ends there: it was cut",
            () if is_backup(file) => "it is a backup of another form: use the version that wrote it",
            () => "it is no backup: one begins with \"partage backup 1\"",
        };
        return Err(error(0, what));
    }
    let (mut at, mut number) = (FIRST.len(), 0);
    let (mut label, mut document) = (None, Vec::new());
    loop {
        let rest = &file[at..];
        let length = rest.iter().position(|byte| *byte == b'\n');
        let length = length.ok_or_else(|| error(file.len(), "the file ends there: it was cut"))?;
        let damaged = || error(at, &format!("block {number} is damaged: its checksum is another"));
        let (prefix, text) = rest[..length].split_at_checked(PREFIX_BYTES).ok_or_else(damaged)?;
        if !is_block(number, prefix, text) && !is_block(number | GOES_ON, prefix, text) {
            return Err(damaged());
        }
        let begin = at;
        at += length + 1;
        number += 1;
        match label {
            None => {
                let read = serde_json::from_slice::<Label>(text);
                label = Some(read.map_err(|why| error(begin, &format!("its label is none: {why}")))?);
            }
            Some(label) if text.is_empty() => {
                return match at == file.len() {
                    true => Ok((label, document)),
                    false => Err(error(at, "something follows on the end of the backup")),
                };
            }
            Some(_) => document.extend(text),
        }
    }
}

fn is_block(number: u64, prefix: &[u8], text: &[u8]) -> bool {
    prefix == format!("{:08x} ", checksum(number, text)).as_bytes()
}

/// The document of a damaged backup without the records that are damaged, and what is wrong with it. Where what holds
/// the records together is damaged, or the file was cut, what is given is no whole document.
///
/// # Errors
/// As [`open`], for a file that was never a backup, or one of another form.
pub fn salvage(file: &[u8]) -> Result<(Vec<u8>, Vec<BackupError>), BackupError> {
    if !file.starts_with(FIRST.as_bytes()) {
        return open(file).map(|(_, document)| (document, vec![]));
    }
    let (mut at, mut number, mut lost, mut ended) = (FIRST.len(), 0, 0, false);
    let (mut mended, mut damage) = (Mended::default(), Vec::new());
    for line in file[at..].split_inclusive(|byte| *byte == b'\n') {
        let begin = at;
        at += line.len();
        let text = line.strip_suffix(b"\n").and_then(|line| line.split_at_checked(PREFIX_BYTES));
        let known = text.and_then(|(prefix, text)| {
            let mut numbers = number..=number + LOST_IN_A_LINE * lost;
            let goes_on = |one: u64| is_block(one | GOES_ON, prefix, text);
            let found = numbers.find(|one| is_block(*one, prefix, text) || goes_on(*one))?;
            Some((found, goes_on(found), text))
        });
        match known {
            Some((_, _, [])) => ended = true,
            Some((0, ..)) => (number, lost) = (1, 0),
            Some((found, goes_on, text)) => {
                (number, lost) = (found + 1, 0);
                mended.add(text, goes_on);
            }
            None => {
                damage.push(BackupError {
                    at: begin,
                    what: "a block is damaged: its record is left out".to_owned(),
                });
                lost += 1;
                mended.skip();
            }
        }
    }
    if !ended {
        damage.push(BackupError { at: file.len(), what: "the end is missing: the file was cut".to_owned() });
    }
    Ok((mended.document(), damage))
}

fn checksum(number: u64, text: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn label() -> Label {
        Label { taken_ms: 1_790_000_000_000, by: "0.1.0".to_owned() }
    }

    fn sealed(pieces: &[&[u8]]) -> Vec<u8> {
        let (mut sealer, mut file) = Sealer::begin(&label());
        pieces.iter().for_each(|piece| file.extend(sealer.add(piece)));
        file.extend(sealer.end());
        file
    }

    /// The checksums are those of another implementation, bit by bit, in Python.
    #[test]
    fn a_backup_looks_like_this() {
        let expected = "partage backup 1\n\
            97833ec0 {\"taken_ms\":1790000000000,\"by\":\"0.1.0\"}\n\
            af52fcec {\"format\":1}\n\
            1e5048c4 \n";
        assert_eq!(String::from_utf8(sealed(&[b"{\"format\"", b":1}"])).unwrap(), expected);
    }

    proptest! {
        #[test]
        fn what_was_sealed_comes_back_however_it_was_cut_into_pieces(
            document in prop::collection::vec(32u8..127, 0..3 * BLOCK_BYTES), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        ) {
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.index(document.len() + 1)).collect();
            cuts.extend([0, document.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|pair| &document[pair[0]..pair[1]]).collect();
            prop_assert_eq!(open(&sealed(&pieces)), Ok((label(), document)));
        }

        #[test]
        fn a_flipped_bit_is_found_in_its_block(
            document in prop::collection::vec(32u8..127, 1..3 * BLOCK_BYTES), place in any::<prop::sample::Index>(), bit in 0u8..8,
        ) {
            let mut file = sealed(&[&document]);
            let at = place.index(file.len());
            file[at] ^= 1 << bit;
            let error = open(&file).unwrap_err();
            // A line break that came or went makes the block longer or shorter: its begin is told all the same.
            prop_assert!(error.at <= at + 1 || error.at == file.len(), "{} found at {}", at, error);
            prop_assert!(at < error.at + BLOCK_BYTES + 2 * PREFIX_BYTES, "{} found at {}", at, error);
        }

        #[test]
        fn a_file_that_was_cut_is_no_backup(
            document in prop::collection::vec(32u8..127, 0..2 * BLOCK_BYTES), place in any::<prop::sample::Index>(),
        ) {
            let file = sealed(&[&document]);
            let at = place.index(file.len());
            let error = open(&file[..at]).unwrap_err();
            prop_assert!(error.what.contains("cut"), "{error}");
        }
    }

    #[test]
    fn blocks_that_are_missing_doubled_or_moved_are_found() {
        let file = sealed(&[&vec![b'x'; 3 * BLOCK_BYTES]]);
        let lines: Vec<&[u8]> = file.split_inclusive(|byte| *byte == b'\n').collect();
        for order in [&[0, 1, 3, 4, 5][..], &[0, 1, 2, 2, 3, 4, 5], &[0, 1, 3, 2, 4, 5], &[0, 2, 3, 4, 5]] {
            let mixed: Vec<u8> = order.iter().flat_map(|line| lines[*line]).copied().collect();
            let error = open(&mixed).unwrap_err();
            assert!(error.what.contains("is damaged"), "{order:?}: {error}");
        }
    }

    fn records(count: usize, bytes: usize) -> String {
        let one =
            |list: &str, at: usize| format!("{{\"id\":\"{list}{at}\",\"what\":\"[,{}\"}}", "x".repeat(bytes));
        let list = |list: &str| (0..count).map(|at| one(list, at)).collect::<Vec<_>>().join(",");
        format!("{{\"format\":1,\"nodes\":[{}],\"plans\":[{}]}}", list("n"), list("p"))
    }

    fn ids(document: &[u8]) -> Option<Vec<String>> {
        let read: serde_json::Value = serde_json::from_slice(document).ok()?;
        let lists = ["nodes", "plans"]
            .into_iter()
            .flat_map(|list| read[list].as_array().cloned().unwrap_or_default());
        Some(lists.map(|one| one["id"].as_str().unwrap_or_default().to_owned()).collect())
    }

    /// D19. Every bit of records, small ones and one that has several blocks.
    #[test]
    fn d8_one_flipped_bit_costs_one_record() {
        for (count, bytes, step) in [(4, 5, 1), (2, BLOCK_BYTES + 100, 4_999)] {
            let document = records(count, bytes);
            let file = sealed(&[document.as_bytes()]);
            assert_eq!(salvage(&file), Ok((document.clone().into_bytes(), vec![])));
            let all = ids(document.as_bytes()).unwrap();
            let mut costs_all = 0;
            for at in (FIRST.len()..file.len()).step_by(step) {
                let mut damaged = file.clone();
                damaged[at] ^= 1 << (at % 8);
                let (rest, damage) = salvage(&damaged).unwrap();
                assert!(!damage.is_empty(), "byte {at}");
                match ids(&rest) {
                    // A line break that is changed takes its neighbour along.
                    Some(rest) => {
                        assert!(rest.len() + 2 >= all.len() && rest.iter().all(|id| all.contains(id)))
                    }
                    None => costs_all += 1,
                }
            }
            // What holds the lists together is short.
            assert!(costs_all * step < 200, "{costs_all} of {}", file.len());
        }
    }

    #[test]
    fn anything_else_is_named() {
        let longer = [sealed(&[b"{}"]), b"{}".to_vec()].concat();
        for (file, what) in [
            (&b"{\"format\":1}"[..], "no backup"),
            (b"partage backup 2\n", "another form"),
            (b"", "cut"),
            (&longer, "follows on the end"),
        ] {
            let error = open(file).unwrap_err().to_string();
            assert!(error.contains(what), "{what}: {error}");
        }
    }
}
