//! Records where they lie in a frame: the form is that of the machines ([`partage_service::shuffle::records`]).

use crate::form::Cursor;
use crate::malformed::Malformed;
use partage_service::shuffle::records::NotRecords;
pub use partage_service::shuffle::records::{PackedRecords, Records, put_record};

impl From<NotRecords> for Malformed {
    fn from(why: NotRecords) -> Malformed {
        const RECORD: &str = "a record";
        match why {
            NotRecords::Number => Malformed::Number(RECORD),
            NotRecords::Ends => Malformed::Ends(RECORD),
            NotRecords::Rest(bytes) => Malformed::Rest(bytes),
            NotRecords::Count { count, bytes } => Malformed::Count { what: "records", count, bytes },
            NotRecords::Large => Malformed::Value("a record larger than records may be"),
            NotRecords::Long(_) => Malformed::Value("more records than may lie together"),
        }
    }
}

/// Reads so many records, which have so many bytes together. The bytes are shared.
pub(crate) fn take(from: &mut Cursor<'_>, count: u64, bytes: usize) -> Result<PackedRecords, Malformed> {
    Ok(PackedRecords::new(count, from.part(bytes, "records")?)?)
}
