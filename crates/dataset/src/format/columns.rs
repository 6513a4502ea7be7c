//! Which columns of a table are the key and the value of a record.

use super::error::Reason;

/// What of a row is its key and what its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Columns {
    /// The column that is the key. A file without a header has the columns `1`, `2` and so on.
    pub key: Option<String>,
    /// None: the row as JSON. One: that column as it is. Several: those as a JSON object.
    pub values: Vec<String>,
    /// Whether the first line of CSV and TSV names the columns.
    pub header: bool,
}

impl Default for Columns {
    fn default() -> Columns {
        Columns { key: None, values: Vec::new(), header: true }
    }
}

impl Columns {
    /// The key's column, which must be named.
    pub(super) fn key(&self) -> Result<&str, Reason> {
        self.key.as_deref().ok_or(Reason::NoKeyColumn)
    }
}

/// Of a row, by the columns' numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// All, as JSON.
    Row,
    /// This one as it is.
    One(usize),
    /// These, as JSON.
    Several(Vec<usize>),
}

/// Finds the key and the values among the columns that there are.
pub fn find(columns: &Columns, known: &[String]) -> Result<(usize, Selection), Reason> {
    let number = |name: &str| {
        let no_column = || Reason::NoColumn {
            column: name.to_owned(),
            known: known.iter().take(KNOWN_SHOWN).map(|name| name.chars().take(64).collect()).collect(),
        };
        known.iter().position(|known| known == name).ok_or_else(no_column)
    };
    let values = match columns.values.as_slice() {
        [] => Selection::Row,
        [one] => Selection::One(number(one)?),
        several => Selection::Several(several.iter().map(|name| number(name)).collect::<Result<_, _>>()?),
    };
    Ok((number(columns.key()?)?, values))
}

/// Of so many columns an error speaks: a reader's eye, not a page.
const KNOWN_SHOWN: usize = 32;

/// Writes a JSON object of fields whose values are JSON already.
pub struct Object<'a> {
    into: &'a mut Vec<u8>,
    is_empty: bool,
}

impl<'a> Object<'a> {
    /// Begins one.
    pub fn begin(into: &'a mut Vec<u8>) -> Object<'a> {
        into.push(b'{');
        Object { into, is_empty: true }
    }

    /// Adds a name; its value is to be written to what is returned.
    pub fn field(&mut self, name: &str) -> &mut Vec<u8> {
        if !std::mem::take(&mut self.is_empty) {
            self.into.push(b',');
        }
        text(self.into, name);
        self.into.push(b':');
        self.into
    }

    /// Ends it.
    pub fn end(self) {
        self.into.push(b'}');
    }
}

/// Writes text as JSON.
pub fn text(into: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(into, text).expect("text is always JSON, and memory always takes it");
}
