//! Which rows of a page a filter wants. The page is read as if there were no filter, and has its bounds; the filter is applied
//! beside the replica's thread, as parsing a page of JSON takes some milliseconds, in which other replicas would wait.

use crate::json::{self, JsonRef};
use crate::limits;
use crate::rows::{ScanPage, ScanRange};
use crate::service::{Refusal, Refused};
use partage_service::table::filter::Filter;
use std::sync::Arc;

/// What is read so that the filter has as much to choose from as one page may look at.
pub(super) fn read_for(range: &ScanRange) -> ScanRange {
    ScanRange { most: limits::SCAN_ROWS, with_values: true, ..range.clone() }
}

/// The rows of a page that are wanted, so many as the range says; the next page begins behind what was looked at.
pub(super) async fn filter(
    page: ScanPage,
    range: &ScanRange,
    filter: Arc<Filter>,
) -> Result<ScanPage, Refused> {
    let (most, with_values) = (range.most, range.with_values);
    let filtering = tokio::task::spawn_blocking(move || filtered(page, &filter, most, with_values));
    let stopped = |_| Refused::new(Refusal::Stopped, "the node stopped before the rows were filtered");
    filtering.await.map_err(stopped)
}

fn filtered(page: ScanPage, filter: &Filter, most: usize, with_values: bool) -> ScanPage {
    let mut wanted = ScanPage { rows: Vec::new(), ..page };
    for mut row in page.rows {
        let value = row.value.as_ref().and_then(|value| json::parse(value));
        if !value.is_some_and(|value| filter.matches(JsonRef(&value))) {
            continue;
        }
        if wanted.rows.len() >= most {
            wanted.next = Some(row.key);
            break;
        }
        row.value = row.value.filter(|_| with_values);
        wanted.rows.push(row);
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::ScannedRow;
    use partage_core::keyspace::key::Key;
    use partage_service::table::replication::LogPosition;

    #[test]
    fn the_next_page_begins_behind_what_was_looked_at() {
        let row = |key: u8, value: &str| ScannedRow {
            key: Key::new(&[key]).unwrap(),
            value: Some(value.as_bytes().into()),
            version: LogPosition::default(),
            expires_ms: None,
        };
        let rows = vec![
            row(1, "{\"n\":1}"),
            row(2, "no JSON"),
            row(3, "{\"n\":3}"),
            row(4, "{\"n\":0}"),
            row(5, "{\"n\":5}"),
        ];
        let page = ScanPage {
            rows,
            next: Some(Key::new(&[9]).unwrap()),
            position: LogPosition::default(),
            age_ms: None,
        };
        let filter = Filter::parse("n > 0").unwrap();
        let found = |most, with_values| {
            let page = filtered(page.clone(), &filter, most, with_values);
            let keys: Vec<u8> = page.rows.iter().map(|row| row.key.as_bytes()[0]).collect();
            assert!(page.rows.iter().all(|row| row.value.is_some() == with_values));
            (keys, page.next.unwrap().as_bytes()[0])
        };
        assert_eq!(found(9, true), (vec![1, 3, 5], 9));
        assert_eq!(found(3, false), (vec![1, 3, 5], 9));
        assert_eq!(found(2, true), (vec![1, 3], 5), "the first row that is wanted and has no room");
        let none = Filter::parse("not n exists").unwrap();
        assert!(filtered(page, &none, 9, true).rows.is_empty(), "what is not JSON is in no result");
    }
}
