//! A backup: a dump in blocks with checksums, so that a reader tells a file which was cut, flipped or mixed up from a whole
//! one, and where.
//!
//! ```text
//! partage backup 1
//! 3f0c9a11 {"taken_ms":1790000000000,"by":"0.1.0","form":1}
//! 8be21d07 {"format":1,"cluster":{"next_incarnation":7,…"nodes":[   what comes before the first record of a list
//! 51aa0be4 {"id":"n1",…}                                        a record; a large one in pieces of 64 KiB
//! 0c7714e2 ,{"id":"n2",…}
//! …
//! 51f0a2c4 1 {"format":1,"cluster":{"next_incarnation":7,…      the frame again: what stands around the records
//! 9d2c4e5f                                                      an empty block: the end
//! ```
//!
//! A line is a block: eight hex digits, a space, the text. The digits are the CRC32C of the block's number (eight
//! bytes, little-endian, from 0; its highest bit is set when the block goes on with the record of the one before it, the next
//! one in a copy) and its text; so a block that was left out, doubled or moved is found like a flipped bit. What comes
//! without the last, empty block was cut. The texts of all blocks but the first and the copies, one after another, are the
//! document of [`crate::json::Dump`], and its format is counted there. As each record has blocks of its own, and the frame
//! that holds them together is there twice, a flipped bit costs one record at the most, or two where it was a line
//! break: [`salvage`] gives the rest. A copy says the number of its block first, with a `+` when that one goes on; all copies
//! come last, so that no line break stands between a block and its copy. That also the first line may be damaged is why
//! the label says the form.
//!
//! Not done: compression (`gzip` does it, and `partage restore` would hide from whom it comes), one checksum at the
//! end (it would not say where).

mod parts;

use parts::{Parts, RepairedDocument};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The first line; the number is that of this form.
const FIRST: &str = "partage backup 1\n";

/// What the first line of every such form begins with.
const KIND: &str = "partage backup ";

/// Text in one block.
const BLOCK_BYTES: usize = 64 << 10;

/// Set in a block's number when it goes on with the record of the block before it.
const GOES_ON: u64 = 1 << 63;

/// Set in the number of a block that is a copy of an earlier one.
const COPY: u64 = 1 << 62;

/// The number of this form, in the label.
const FORM: u32 = 1;

/// What is said of a damaged block, of a damaged copy, and of a damaged first line.
const BLOCK_DAMAGED: &str = "a block is damaged: its record is left out, or it is taken from its copy";
const COPY_DAMAGED: &str = "a copy is damaged: nothing is left out for that";
const BEGIN_DAMAGED: &str = "the first line is damaged";

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
    /// The offset of the fault in the file, in bytes from 0.
    pub at: usize,
    /// What is wrong there.
    pub what: String,
}

/// Writes a backup, piece by piece.
#[derive(Debug)]
pub struct BackupWriter {
    number: u64,
    waiting: Vec<u8>,
    parts: Parts,
    /// What waits goes on with the record of the last block.
    goes_on: bool,
    /// What the copies say.
    copies: Vec<Vec<u8>>,
}

/// What a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockKind {
    /// A part begins with it.
    Begins,
    /// It goes on with the part of the one before it.
    GoesOn,
    /// A copy of an earlier one.
    Copy,
}

impl BlockKind {
    /// What is set in the number of such a block.
    fn bits(self) -> u64 {
        match self {
            BlockKind::Begins => 0,
            BlockKind::GoesOn => GOES_ON,
            BlockKind::Copy => COPY,
        }
    }
}

impl BackupWriter {
    /// Begins one; the bytes are what the file begins with.
    pub fn begin(label: &Label) -> (BackupWriter, Vec<u8>) {
        let mut writer = BackupWriter {
            number: 0,
            waiting: Vec::new(),
            parts: Parts::default(),
            goes_on: false,
            copies: Vec::new(),
        };
        let mut file = FIRST.as_bytes().to_vec();
        let by = serde_json::Value::from(label.by.as_str());
        let label = format!("{{\"taken_ms\":{},\"by\":{by},\"form\":{FORM}}}", label.taken_ms);
        writer.block(BlockKind::Begins, label.as_bytes(), &mut file);
        (writer, file)
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
                self.document_block(&mut file);
                self.goes_on = !ends;
                if ends {
                    self.parts.begin_part();
                }
            }
        }
        file
    }

    /// There is no more; the bytes are what the file ends with.
    pub fn end(mut self) -> Vec<u8> {
        let mut file = Vec::new();
        if !self.waiting.is_empty() {
            self.document_block(&mut file);
        }
        for copy in std::mem::take(&mut self.copies) {
            self.block(BlockKind::Copy, &copy, &mut file);
        }
        self.block(BlockKind::Begins, b"", &mut file);
        file
    }

    /// What waits is a block, and is kept for a copy where it is of the frame.
    fn document_block(&mut self, file: &mut Vec<u8>) {
        let text = std::mem::take(&mut self.waiting);
        let (kind, plus) = if self.goes_on { (BlockKind::GoesOn, "+") } else { (BlockKind::Begins, "") };
        if self.parts.is_frame() {
            self.copies.push([format!("{}{plus} ", self.number).as_bytes(), &text].concat());
        }
        self.block(kind, &text, file);
    }

    fn block(&mut self, kind: BlockKind, text: &[u8], file: &mut Vec<u8>) {
        file.extend(format!("{:08x} ", checksum(self.number | kind.bits(), text)).as_bytes());
        file.extend(text);
        file.push(b'\n');
        self.number += 1;
    }
}

/// Whether that is meant to be a backup, whole or not.
pub fn is_backup(file: &[u8]) -> bool {
    file.starts_with(KIND.as_bytes()) || only_begin_is_damaged(file)
}

/// Whether the label of a backup of this form stands where it should.
fn only_begin_is_damaged(file: &[u8]) -> bool {
    let rest = file.get(FIRST.len()..).unwrap_or_default();
    let label = rest.split(|byte| *byte == b'\n').next().and_then(|line| line.split_at_checked(PREFIX_BYTES));
    let form = label
        .filter(|(prefix, text)| is_block(0, prefix, text))
        .and_then(|(_, text)| serde_json::from_slice::<serde_json::Value>(text).ok()?.get("form")?.as_u64());
    form == Some(FORM.into())
}

/// The label and the document of a backup.
///
/// # Errors
/// Says at which byte the first thing is that is wrong.
pub fn open(file: &[u8]) -> Result<(Label, Vec<u8>), BackupError> {
    let error = |at: usize, what: &str| BackupError { at, what: what.to_owned() };
    if !file.starts_with(FIRST.as_bytes()) {
        let what = match () {
            () if only_begin_is_damaged(file) => BEGIN_DAMAGED,
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
        let kind = block_kind(number, prefix, text).ok_or_else(damaged)?;
        let begin = at;
        at += length + 1;
        number += 1;
        match label {
            None => {
                let read = serde_json::from_slice::<Label>(text);
                label = Some(read.map_err(|why| error(begin, &format!("its label is none: {why}")))?);
            }
            Some(_) if kind == BlockKind::Copy => {}
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

/// What kind of block it is, if it is one with that number.
fn block_kind(number: u64, prefix: &[u8], text: &[u8]) -> Option<BlockKind> {
    [BlockKind::Begins, BlockKind::GoesOn, BlockKind::Copy]
        .into_iter()
        .find(|kind| is_block(number | kind.bits(), prefix, text))
}

/// One line of a damaged backup.
struct Line<'a> {
    /// The byte of the file at which the line begins.
    at: usize,
    /// Its block, if that is whole: the number, what it is, and the text.
    block: Option<(u64, BlockKind, &'a [u8])>,
}

/// The lines of a backup. A line stands for two blocks at the most, or a block for two lines, where a line break came or
/// went: so the next whole block after a damaged one is found by its number.
fn lines(file: &[u8]) -> Vec<Line<'_>> {
    let (mut at, mut number, mut lost) = (FIRST.len(), 0, 0);
    let mut lines = Vec::new();
    for line in file[at..].split_inclusive(|byte| *byte == b'\n') {
        let text = line.strip_suffix(b"\n").and_then(|line| line.split_at_checked(PREFIX_BYTES));
        let block = text.and_then(|(prefix, text)| {
            let mut numbers = number..=number + LOST_IN_A_LINE * lost;
            numbers.find_map(|one| Some((one, block_kind(one, prefix, text)?, text)))
        });
        (number, lost) = block.map_or((number, lost + 1), |(found, ..)| (found + 1, 0));
        lines.push(Line { at, block });
        at += line.len();
    }
    lines
}

/// What a copy is a copy of: the number of a block, whether that goes on with the one before, and its text.
fn copied(copy: &[u8]) -> Option<(u64, (BlockKind, &[u8]))> {
    let blank = copy.iter().position(|byte| *byte == b' ')?;
    let number = std::str::from_utf8(&copy[..blank]).ok()?;
    let kind = if number.ends_with('+') { BlockKind::GoesOn } else { BlockKind::Begins };
    Some((number.trim_end_matches('+').parse().ok()?, (kind, &copy[blank + 1..])))
}

/// The document of a damaged backup without the records that are damaged, and what is wrong with it. Where the file was
/// cut, or is damaged in several places, what is given may be no whole document.
///
/// # Errors
/// As [`open`], for a file that was never a backup, or one of another form.
pub fn salvage(file: &[u8]) -> Result<(Vec<u8>, Vec<BackupError>), BackupError> {
    let mut damage = Vec::new();
    if !file.starts_with(FIRST.as_bytes()) {
        if !only_begin_is_damaged(file) {
            return open(file).map(|(_, document)| (document, vec![]));
        }
        damage.push(BackupError { at: 0, what: BEGIN_DAMAGED.to_owned() });
    }
    let lines = lines(file);
    let copies = lines.iter().filter_map(|line| match line.block {
        Some((_, BlockKind::Copy, text)) => copied(text),
        _ => None,
    });
    let copies: BTreeMap<u64, (BlockKind, &[u8])> = copies.collect();
    let (mut repaired, mut next, mut ended) = (RepairedDocument::default(), 0, false);
    for line in &lines {
        let Some((number, kind, text)) = line.block else {
            let what = if repaired.is_over() { COPY_DAMAGED } else { BLOCK_DAMAGED };
            damage.push(BackupError { at: line.at, what: what.to_owned() });
            continue;
        };
        for missing in next..number {
            match copies.get(&missing) {
                Some((kind, text)) => repaired.add(text, *kind == BlockKind::GoesOn),
                None => repaired.skip(),
            }
        }
        next = number + 1;
        match kind {
            // The label is none of the document.
            BlockKind::Begins if number == 0 => {}
            BlockKind::Begins if text.is_empty() => ended = true,
            BlockKind::Begins | BlockKind::GoesOn => repaired.add(text, kind == BlockKind::GoesOn),
            BlockKind::Copy => {}
        }
    }
    if !ended {
        damage.push(BackupError { at: file.len(), what: "the end is missing: the file was cut".to_owned() });
    }
    Ok((repaired.document(), damage))
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
        let (mut writer, mut file) = BackupWriter::begin(&label());
        pieces.iter().for_each(|piece| file.extend(writer.add(piece)));
        file.extend(writer.end());
        file
    }

    /// The checksums are those of another implementation, bit by bit, in Python.
    #[test]
    fn a_backup_looks_like_this() {
        let expected = "partage backup 1\n\
            dd162900 {\"taken_ms\":1790000000000,\"by\":\"0.1.0\",\"form\":1}\n\
            af52fcec {\"format\":1}\n\
            9d287c34 1 {\"format\":1}\n\
            576c35e3 \n";
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
            // A line break that came or went makes the block longer or shorter: the error names its begin all the same.
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

    /// A real dump: of a cluster with all it may have, keyspaces with maps, nodes and plans.
    fn dump() -> Vec<u8> {
        use crate::testing;
        use partage_core::base::id::ShardId;
        use partage_core::cluster::{KeyspaceRecord, Records};
        use proptest::strategy::ValueTree;
        use proptest::test_runner::TestRunner;

        fn drawn<T>(runner: &mut TestRunner, strategy: impl Strategy<Value = T>) -> T {
            strategy.new_tree(runner).unwrap().current()
        }
        let mut runner = TestRunner::deterministic();
        let keyspaces = (0..2).map(|_| {
            let (keyspace, diffs) = drawn(&mut runner, testing::histories(3..4));
            let map = testing::replay(&keyspace, &diffs);
            (KeyspaceRecord::new(keyspace, 1, ShardId(1)), map)
        });
        let mut records = Records { keyspaces: keyspaces.collect(), ..Records::default() };
        records.nodes = (0..4).map(|_| drawn(&mut runner, testing::node_records())).collect();
        records.plans = (0..4).map(|_| drawn(&mut runner, testing::plans())).collect();
        records.cluster = drawn(&mut runner, testing::cluster_records());
        records.cluster.brake = Some("a, b and \"c\" [are] {down}".to_owned());
        records.cluster.deleted_keyspaces.insert("gone".parse().unwrap(), ShardId(9));
        serde_json::to_vec(&crate::json::Dump::from(&records)).unwrap()
    }

    /// How many records of each list are in the first that are not in the second; none where what holds them together
    /// is another.
    fn lost(before: &serde_json::Value, after: &[u8]) -> Option<usize> {
        let mut after: serde_json::Value = serde_json::from_slice(after).ok()?;
        let (mut frame, mut missing) = (before.clone(), 0);
        for (list, records) in before.as_object()? {
            let Some(records) = records.as_array() else { continue };
            let rest = after.get_mut(list)?.as_array_mut()?;
            missing += records.len() - rest.len();
            if !rest.iter().all(|one| records.contains(one)) {
                return None;
            }
            frame[list] = std::mem::take(rest).into();
            after[list] = frame[list].clone();
        }
        (frame == after).then_some(missing)
    }

    /// D19. Any bit of a backup: of the first line, of records, small ones and some that have several blocks, and of what
    /// stands around them.
    #[test]
    fn d8_one_flipped_bit_costs_one_record() {
        let large = records(2, BLOCK_BYTES + 100).into_bytes();
        let wide =
            format!("{{\"format\":1,\"cluster\":\"{}\",\"nodes\":[{{}}]}}", "y".repeat(3 * BLOCK_BYTES));
        for (document, step) in [(dump(), 1), (large, 4_999), (wide.into_bytes(), 4_999)] {
            let file = sealed(&[&document]);
            assert_eq!(salvage(&file), Ok((document.clone(), vec![])));
            let before = serde_json::from_slice(&document).unwrap();
            for at in (0..file.len()).step_by(step) {
                let mut damaged = file.clone();
                damaged[at] ^= 1 << (at % 8);
                assert!(is_backup(&damaged) && open(&damaged).is_err(), "byte {at}");
                let (rest, damage) = salvage(&damaged).unwrap();
                assert!(!damage.is_empty(), "byte {at}");
                let lost = lost(&before, &rest).unwrap_or_else(|| panic!("byte {at} costs all: {damage:?}"));
                // A line break that is changed takes its neighbour along.
                assert!(lost <= if file[at] == b'\n' { 2 } else { 1 }, "byte {at} costs {lost} records");
            }
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
