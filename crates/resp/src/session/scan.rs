//! `SCAN`.

use super::Session;
use crate::error;
use crate::glob;
use crate::limits;
use crate::reply::Reply;
use crate::request::Arguments;
use crate::table::ScanFrom;

struct Options<'a> {
    pattern: Option<&'a [u8]>,
    count: usize,
    /// The type that is asked for is one that rows have.
    has_type: bool,
}

impl<'a> Options<'a> {
    fn read(arguments: Arguments<'a>) -> Result<Options<'a>, Reply> {
        let mut options = Options { pattern: None, count: limits::SCAN_COUNT, has_type: true };
        for at in (2..arguments.len()).step_by(2) {
            if at + 1 == arguments.len() {
                return Err(error::syntax());
            }
            let value = arguments.get(at + 1);
            match arguments.get(at).to_ascii_uppercase().as_slice() {
                b"COUNT" => {
                    let count = crate::command::rows::number(value)?;
                    let count = usize::try_from(count).ok().filter(|count| *count > 0);
                    options.count = count.ok_or_else(error::syntax)?.min(limits::SCAN_ROWS);
                }
                b"MATCH" => options.pattern = Some(value),
                b"TYPE" => options.has_type = value.eq_ignore_ascii_case(b"string"),
                _ => return Err(error::syntax()),
            }
        }
        Ok(options)
    }
}

impl Session {
    pub(super) async fn scan(&mut self, arguments: Arguments<'_>) -> Result<Reply, Reply> {
        let text = std::str::from_utf8(arguments.get(1)).ok();
        let cursor: u64 =
            text.and_then(|text| text.parse().ok()).ok_or_else(|| Reply::error("invalid cursor"))?;
        let options = Options::read(arguments)?;
        let table = self.table()?.clone();
        let token = match cursor {
            0 => None,
            cursor => Some(self.shared.cursors.find(table.name(), cursor).ok_or_else(|| {
                Reply::error(format_args!(
                    "the cursor {cursor} is not known, or not any more: begin again with 0"
                ))
            })?),
        };
        let prefix = options.pattern.map(glob::prefix).unwrap_or_default();
        let from = ScanFrom { token, most: options.count, prefix };
        let page = table.scan(from, self.consistency()).await.map_err(|error| error::reply(&error))?;
        let now_ms = table.now_ms();
        let keys = page.keys.into_iter().filter(|found| {
            let is_met = |pattern| glob::matches(pattern, found.key.as_bytes());
            options.has_type && found.is_there(now_ms) && options.pattern.is_none_or(is_met)
        });
        let keys = keys.map(|found| Reply::Bytes(found.key.as_bytes().to_vec())).collect();
        let next = page.next.map_or(0, |token| self.shared.cursors.add(table.name(), &token));
        Ok(Reply::Array(vec![Reply::text(next.to_string()), Reply::Array(keys)]))
    }
}
