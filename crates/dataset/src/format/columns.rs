//! Which columns of a table are the key and the value of a record.

use partage_service::dataset::columns as key;

use super::error::Reason;

/// What of a row is its key and what its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Columns {
    /// The columns that are the key; several are [joined](key). A file without a header has the columns `1`, `2` and so on.
    pub key: Vec<String>,
    /// None: the row as JSON. One: that column as it is. Several: those as a JSON object.
    pub values: Vec<String>,
    /// Whether the first line of CSV and TSV names the columns.
    pub header: bool,
    /// What stands between two fields; none: a comma in CSV, a tabulator in TSV.
    pub delimiter: Option<u8>,
    /// What stands around a field that has a delimiter in it.
    pub quoting: Quoting,
}

/// Which quotes there are in CSV and TSV.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Quoting {
    /// `"` in CSV, none in TSV.
    #[default]
    OfFormat,
    /// None: a quote is a part of its field.
    None,
    /// This one, doubled within a field.
    By(u8),
}

impl Default for Columns {
    fn default() -> Columns {
        Columns {
            key: Vec::new(),
            values: Vec::new(),
            header: true,
            delimiter: None,
            quoting: Quoting::OfFormat,
        }
    }
}

impl Columns {
    /// The key's columns, which must be named.
    pub(super) fn key(&self) -> Result<&[String], Reason> {
        if self.key.is_empty() { Err(Reason::NoKeyColumn) } else { Ok(&self.key) }
    }
}

/// The value of a record, out of a row; columns by their numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// The whole row, as a JSON object.
    Row,
    /// The bytes of one column, as they are.
    One(usize),
    /// A JSON object of these columns.
    Several(Vec<usize>),
}

/// Adds one of so many columns to a key: the only one as it is.
pub fn add_to_key(into: &mut Vec<u8>, (number, of): (usize, usize), column: &[u8]) {
    match of {
        1 => into.extend_from_slice(column),
        _ => key::add(into, number == 0, column),
    }
}

/// Finds the key and the values among the columns that there are.
pub fn find(columns: &Columns, known: &[String]) -> Result<(Vec<usize>, Selection), Reason> {
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
    let key = columns.key()?.iter().map(|name| number(name)).collect::<Result<_, _>>()?;
    Ok((key, values))
}

/// How many columns an error names, as a person reads it.
const KNOWN_SHOWN: usize = 32;

/// Writes a JSON object of fields whose values are JSON already.
pub struct Object<'a> {
    into: &'a mut Vec<u8>,
    is_empty: bool,
}

impl<'a> Object<'a> {
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

    pub fn end(self) {
        self.into.push(b'}');
    }
}

/// Writes text as JSON.
pub fn text(into: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(into, text).expect("text is always JSON, and memory always takes it");
}
