//! Conversion of what is sent between nodes.

use partage_core::base::id::Epoch;
use partage_core::base::name::IndexName;
use partage_core::keyspace::key::Key;
use partage_service::table::check::{Digest, Part, RangeDigest, Sum};
use partage_service::table::filter::Path;
use partage_service::table::index::{Definition, IndexChange, IndexState, TableState};
use partage_service::table::replication::LogPosition;
use partage_wire::table::{
    DigestForm, KeyBytes, PartForm, RangeForm, ShardIndex, ShardIndexRequest, SumForm,
};
use std::collections::BTreeMap;

pub(super) fn name_of(text: &str) -> Result<IndexName, String> {
    IndexName::new(text).map_err(|error| error.to_string())
}

/// The change of indexes that a request asks for.
pub(super) fn change_of(request: &ShardIndexRequest) -> Result<IndexChange, String> {
    match request {
        ShardIndexRequest::Create(create) => {
            let path = Path::parse(&create.field).map_err(|error| error.to_string())?;
            Ok(IndexChange::Create(name_of(&create.name)?, path))
        }
        ShardIndexRequest::Drop(name) => Ok(IndexChange::Drop(name_of(name)?)),
        _ => Err("the request changes no index".to_owned()),
    }
}

pub(super) fn shard_index(definition: &Definition) -> ShardIndex {
    let state = match definition.state {
        IndexState::Building(_) => TableState::Building,
        IndexState::Ready => TableState::Ready,
        IndexState::Dropping(_) => TableState::Dropping,
    };
    let (name, field) = (definition.name.to_string(), definition.path.to_string());
    ShardIndex { name, field, state: state.into() }
}

/// An index of a shard, without how far it is built; none if it is not understood.
pub(super) fn definition(form: ShardIndex) -> Option<Definition> {
    let new = Definition::new(IndexName::new(&form.name).ok()?, Path::parse(&form.field).ok()?);
    let state = match form.state.known()? {
        TableState::Building => IndexState::Building(Key::empty()),
        TableState::Ready => IndexState::Ready,
        TableState::Dropping => IndexState::Dropping(Vec::new()),
        TableState::Incomplete | TableState::Conflicting => return None,
    };
    Some(Definition { state, ..new })
}

fn part_form(part: &Part) -> PartForm {
    match part {
        Part::Rows => PartForm::Rows,
        Part::Ends => PartForm::Ends,
        Part::Index(name) => PartForm::Index(name.to_string()),
        Part::Stray => PartForm::Stray,
        Part::Others => PartForm::Others,
    }
}

fn part(form: PartForm) -> Option<Part> {
    Some(match form {
        PartForm::Rows => Part::Rows,
        PartForm::Ends => Part::Ends,
        PartForm::Index(name) => Part::Index(IndexName::new(&name).ok()?),
        PartForm::Stray => Part::Stray,
        PartForm::Others => Part::Others,
    })
}

fn sum_forms(sums: &BTreeMap<Part, Sum>) -> Vec<(PartForm, SumForm)> {
    sums.iter().map(|(part, sum)| (part_form(part), SumForm(sum.count, sum.hash))).collect()
}

fn sums(forms: Vec<(PartForm, SumForm)>) -> Option<BTreeMap<Part, Sum>> {
    let sum = |(form, SumForm(count, hash))| Some((part(form)?, Sum { count, hash }));
    forms.into_iter().map(sum).collect()
}

pub(super) fn digest_form(position: LogPosition, digest: &Digest) -> DigestForm {
    let range = |(first, range): (&Key, &RangeDigest)| RangeForm {
        first: KeyBytes(first.clone()),
        stored: sum_forms(&range.stored),
        expected: sum_forms(&range.expected),
    };
    DigestForm {
        epoch: position.epoch.0,
        index: position.index,
        ranges: digest.ranges.iter().map(range).collect(),
        unfinished: digest.unfinished.iter().map(ToString::to_string).collect(),
    }
}

/// What a replica has, and as of which entry; none if it is not understood.
pub(super) fn digest(form: DigestForm) -> Option<(LogPosition, Digest)> {
    let range = |form: RangeForm| {
        Some((form.first.0, RangeDigest { stored: sums(form.stored)?, expected: sums(form.expected)? }))
    };
    let ranges = form.ranges.into_iter().map(range).collect::<Option<_>>()?;
    let unfinished = form.unfinished.iter().map(|name| IndexName::new(name).ok()).collect::<Option<_>>()?;
    let position = LogPosition { epoch: Epoch(form.epoch), index: form.index };
    Some((position, Digest { ranges, unfinished }))
}
