//! Rows as they are sent, to clients and between nodes ([`partage_wire::table`]).

use super::token::Place;
use crate::rows::ScannedRow;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use partage_core::base::id::Epoch;
use partage_service::table::replication::LogPosition;
use partage_wire::table::{BytesText, KeyBytes, PlaceForm, RowText, ShardRow};

/// A row for a client.
pub(crate) fn for_client(row: ScannedRow) -> RowText {
    RowText {
        key: BytesText::from(&row.key),
        value: row.value.map(|value| BytesText::from(&value[..])),
        version: format!("{}-{}", row.version.epoch.0, row.version.index),
        expires_ms: row.expires_ms,
    }
}

/// A row for another node.
pub(crate) fn for_node(row: ScannedRow) -> ShardRow {
    ShardRow {
        key: KeyBytes(row.key),
        value: row.value.map(|value| STANDARD.encode(&value)),
        epoch: row.version.epoch.0,
        index: row.version.index,
        expires_ms: row.expires_ms,
    }
}

/// A row of another node; none if it is not understood.
pub(crate) fn from_node(row: ShardRow) -> Option<ScannedRow> {
    let value = row.value.map(|value| STANDARD.decode(value)).transpose().ok()?;
    let version = LogPosition { epoch: Epoch(row.epoch), index: row.index };
    Some(ScannedRow { key: row.key.0, value: value.map(Into::into), version, expires_ms: row.expires_ms })
}

impl From<Place> for PlaceForm {
    fn from(place: Place) -> PlaceForm {
        match place {
            Place::Key(key) => PlaceForm::Key(KeyBytes(key)),
            Place::Point(point) => PlaceForm::Point(point),
            Place::Slot(slot) => PlaceForm::Slot(slot),
        }
    }
}

/// Where a scan goes on; none: no scan goes on there.
pub(crate) fn place(form: PlaceForm) -> Option<Place> {
    match form {
        PlaceForm::Key(KeyBytes(key)) => Some(Place::Key(key)),
        PlaceForm::Point(point) => Some(Place::Point(point)),
        PlaceForm::Slot(slot) => Some(Place::Slot(slot)),
        PlaceForm::Name(_) => None,
    }
}
