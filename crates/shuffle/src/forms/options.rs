//! The stored form of what a shuffle was started with besides its terms, of how it combines records, and how durable it is.
//!
//! ```text
//! options  kind | time to live 1 or 9, before it is sealed and then | owner 4 …
//! kind     1, of raw records
//!          2 | encoding 2 | schema 4 … | columns 4 | ( column 4 | descends 1 | nulls first 1 ) for each
//!            | combined columns 4 | ( column 4 | by 1 ) for each
//! combine  0, of none; or 1 to 7, in the order of `Combine::ALL`
//! durability  1, on disk; or 2, in memory
//! ```

use super::{bytes, items, put_bytes, put_count, u8, u16, u32, u64};
use bytes::BufMut;
use partage_service::shuffle::{
    ArrowKind, ColumnCombine, Combine, CombinedColumn, Durability, RecordKind, ShuffleOptions, SortColumn,
};

const RAW: u8 = 1;
const ARROW: u8 = 2;

pub(super) fn put_options(out: &mut Vec<u8>, options: &ShuffleOptions) {
    match &options.kind {
        RecordKind::Raw => out.put_u8(RAW),
        RecordKind::Arrow(arrow) => {
            out.put_u8(ARROW);
            out.put_u16(arrow.encoding);
            put_bytes(out, &arrow.schema);
            put_count(out, arrow.order.len());
            for one in &arrow.order {
                out.put_u32(one.column);
                out.put_u8(one.descends.into());
                out.put_u8(one.nulls_first.into());
            }
            put_count(out, arrow.combine.len());
            for one in &arrow.combine {
                out.put_u32(one.column);
                out.put_u8(match one.by {
                    ColumnCombine::Count => 1,
                    ColumnCombine::Sum => 2,
                    ColumnCombine::Min => 3,
                    ColumnCombine::Max => 4,
                });
            }
        }
    }
    for ttl in [options.unsealed_ttl_ms, options.sealed_ttl_ms] {
        out.put_u8(ttl.is_some().into());
        ttl.iter().for_each(|ttl| out.put_u64(*ttl));
    }
    put_bytes(out, options.owner.as_bytes());
}

pub(super) fn options(from: &mut &[u8]) -> Option<ShuffleOptions> {
    let kind = match u8(from)? {
        RAW => RecordKind::Raw,
        ARROW => RecordKind::Arrow(ArrowKind {
            encoding: u16(from)?,
            schema: bytes(from)?,
            order: items(from, column)?,
            combine: items(from, combined_column)?,
        }),
        _ => return None,
    };
    let (unsealed_ttl_ms, sealed_ttl_ms) = (ttl(from)?, ttl(from)?);
    let owner = std::str::from_utf8(&bytes(from)?).ok()?.to_owned();
    Some(ShuffleOptions { kind, unsealed_ttl_ms, sealed_ttl_ms, owner })
}

pub(super) fn put_combine(out: &mut Vec<u8>, combine: Option<Combine>) {
    out.put_u8(match combine {
        None => 0,
        Some(Combine::Count) => 1,
        Some(Combine::SumI64) => 2,
        Some(Combine::MinI64) => 3,
        Some(Combine::MaxI64) => 4,
        Some(Combine::SumF64) => 5,
        Some(Combine::MinF64) => 6,
        Some(Combine::MaxF64) => 7,
    });
}

pub(super) fn put_durability(out: &mut Vec<u8>, durability: Durability) {
    out.put_u8(match durability {
        Durability::Disk => 1,
        Durability::Memory => 2,
    });
}

pub(super) fn durability(from: &mut &[u8]) -> Option<Durability> {
    match u8(from)? {
        1 => Some(Durability::Disk),
        2 => Some(Durability::Memory),
        _ => None,
    }
}

/// In the order of their codes.
pub(super) fn combine(from: &mut &[u8]) -> Option<Option<Combine>> {
    match u8(from)? {
        0 => Some(None),
        code => Combine::ALL.get(usize::from(code) - 1).map(|how| Some(*how)),
    }
}

fn column(from: &mut &[u8]) -> Option<SortColumn> {
    Some(SortColumn { column: u32(from)?, descends: yes_or_no(from)?, nulls_first: yes_or_no(from)? })
}

/// In the order of their codes.
fn combined_column(from: &mut &[u8]) -> Option<CombinedColumn> {
    let (column, code) = (u32(from)?, u8(from)?);
    let by = usize::from(code).checked_sub(1).and_then(|place| ColumnCombine::ALL.get(place))?;
    Some(CombinedColumn { column, by: *by })
}

fn ttl(from: &mut &[u8]) -> Option<Option<u64>> {
    if yes_or_no(from)? { u64(from).map(Some) } else { Some(None) }
}

fn yes_or_no(from: &mut &[u8]) -> Option<bool> {
    match u8(from)? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_to_combine_has_its_code() {
        let all = [None].into_iter().chain(Combine::ALL.map(Some));
        for (code, how) in (0_u8..).zip(all) {
            let mut out = Vec::new();
            put_combine(&mut out, how);
            assert_eq!(out, [code]);
            assert_eq!(combine(&mut &out[..]), Some(how));
        }
        assert_eq!(combine(&mut &[8_u8][..]), None);
        assert_eq!(combine(&mut &b""[..]), None);
    }

    #[test]
    fn each_durability_has_its_code() {
        for (code, one) in (1_u8..).zip(Durability::ALL) {
            let mut out = Vec::new();
            put_durability(&mut out, one);
            assert_eq!((&out[..], durability(&mut &out[..])), (&[code][..], Some(one)));
        }
        assert_eq!((durability(&mut &[0_u8][..]), durability(&mut &[3_u8][..])), (None, None));
    }

    #[test]
    fn options_have_this_form() {
        let order = vec![
            SortColumn { column: 3, descends: true, nulls_first: false },
            SortColumn { column: 1, descends: false, nulls_first: true },
        ];
        let combine = vec![CombinedColumn { column: 2, by: ColumnCombine::Max }];
        let kind =
            RecordKind::Arrow(ArrowKind { encoding: 1, schema: b"s".as_slice().into(), order, combine });
        let all = ShuffleOptions {
            kind,
            unsealed_ttl_ms: Some(20_000),
            sealed_ttl_ms: None,
            owner: "etl".to_owned(),
        };
        let cases: [(ShuffleOptions, &[u8]); 2] = [
            (ShuffleOptions::default(), b"\x01\0\0\0\0\0\0"),
            (
                all,
                b"\x02\0\x01\0\0\0\x01s\0\0\0\x02\0\0\0\x03\x01\0\0\0\0\x01\0\x01\
                  \0\0\0\x01\0\0\0\x02\x04\
                  \x01\0\0\0\0\0\0\x4e\x20\0\0\0\0\x03etl",
            ),
        ];
        for (given, form) in cases {
            let mut out = Vec::new();
            put_options(&mut out, &given);
            assert_eq!(out, form);
            let from = &mut &form[..];
            assert_eq!(options(from), Some(given));
            assert!(from.is_empty());
            for length in 0..form.len() {
                assert_eq!(options(&mut &form[..length]), None, "{length} bytes");
            }
        }
    }
}
