//! Conversions of keyspaces that JSON and protobuf share.

use crate::conversion::{from_forms, into_forms};
use crate::json::{self, strings};
use crate::malformed::names;
use crate::proto;
use partage_core::keyspace::Constraint;

into_forms!(constraint: &Constraint => [json::Constraint, proto::Constraint] {
    pinned: strings(&constraint.pinned),
    excluded: strings(&constraint.excluded),
    labels: strings(&constraint.labels),
});

from_forms!(form: [json::Constraint, proto::Constraint] => Constraint {
    pinned: names(&form.pinned, "pinned")?,
    excluded: names(&form.excluded, "excluded")?,
    labels: names(&form.labels, "labels")?,
});
