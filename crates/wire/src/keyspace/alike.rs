//! What the forms of keyspaces have alike in JSON and protobuf.

use crate::alike::{read_alike, write_alike};
use crate::json::{self, strings};
use crate::malformed::names;
use crate::proto;
use partage_core::keyspace::Constraint;

write_alike!(Constraint: constraint as json::Constraint, proto::Constraint => {
    pinned: strings(&constraint.pinned),
    excluded: strings(&constraint.excluded),
    labels: strings(&constraint.labels),
});

read_alike!(Constraint: form of json::Constraint, proto::Constraint => Constraint {
    pinned: names(&form.pinned, "pinned")?,
    excluded: names(&form.excluded, "excluded")?,
    labels: names(&form.labels, "labels")?,
});
