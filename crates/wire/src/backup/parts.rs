//! Where a document may be cut so that each record of it is a block, or several, of its own.
//!
//! A dump is one object of records and lists of records. The text before the first record of a list, each record with
//! the comma before it, and the text after the last one are parts. A flipped bit costs the record that it is in. What is
//! no record, but stands around the lists, is the frame: without it no record could be read, so a backup has it twice.

/// Follows a document, byte by byte, without reading it.
#[derive(Debug, Clone, Default)]
pub(super) struct Parts {
    depth: u32,
    in_text: bool,
    escaped: bool,
    /// The text so far ends in a list of records.
    in_list: bool,
    /// The present part has been in a list since it began.
    is_record: bool,
}

/// A record of a list is this deep: the document, the list.
const LIST: u32 = 2;

impl Parts {
    /// The next byte. Whether a part ends with it.
    pub(super) fn ends_with(&mut self, byte: u8) -> bool {
        if self.in_text {
            self.in_text = self.escaped || byte != b'"';
            self.escaped = !self.escaped && byte == b'\\';
            return false;
        }
        match byte {
            b'"' => self.in_text = true,
            b'[' | b'{' => {
                self.depth = self.depth.saturating_add(1);
                let begins_list = byte == b'[' && self.depth == LIST;
                self.in_list |= begins_list;
                return begins_list;
            }
            b']' | b'}' => {
                self.depth = self.depth.saturating_sub(1);
                if self.depth < LIST {
                    (self.in_list, self.is_record) = (false, false);
                }
                return self.depth == LIST;
            }
            _ => {}
        }
        false
    }

    /// The next part begins.
    pub(super) fn begin_part(&mut self) {
        self.is_record = self.in_list;
    }

    /// Whether the present part, as far as it is known, stands around the lists.
    pub(super) fn is_frame(&self) -> bool {
        !self.is_record
    }

    /// Whether the document has ended.
    fn is_over(&self) -> bool {
        self.depth == 0
    }

    /// Whether the text so far ends between two records, or before the end of a list.
    fn is_between(&self) -> bool {
        !self.in_text && self.depth <= LIST
    }
}

/// A document put together from the blocks that are whole.
#[derive(Debug, Default)]
pub(super) struct RepairedDocument {
    document: Vec<u8>,
    parts: Parts,
    /// Where the last part begins, and how things stood there.
    begun: (usize, Parts),
    /// What follows belongs to a part that is damaged.
    skipping: bool,
}

impl RepairedDocument {
    /// A whole block; `goes_on` with the part of the block before it.
    pub(super) fn add(&mut self, text: &[u8], goes_on: bool) {
        if goes_on && self.skipping {
            return;
        }
        self.skipping = false;
        if !goes_on {
            self.begun = (self.document.len(), self.parts.clone());
        }
        // The first record of a list is gone, and needs no comma after it.
        let comma = text.first() == Some(&b',') && self.document.last() == Some(&b'[');
        let text = if comma { &text[1..] } else { text };
        for byte in text {
            self.parts.ends_with(*byte);
        }
        self.document.extend(text);
    }

    /// A block is damaged: what it belongs to is left out.
    pub(super) fn skip(&mut self) {
        if !self.skipping && !self.parts.is_between() {
            let (length, parts) = std::mem::take(&mut self.begun);
            self.document.truncate(length);
            self.parts = parts;
        }
        self.skipping = true;
    }

    /// Whether the document is there to its end.
    pub(super) fn is_over(&self) -> bool {
        !self.document.is_empty() && self.parts.is_over()
    }

    /// The document, without what was left out.
    pub(super) fn document(self) -> Vec<u8> {
        self.document
    }
}
