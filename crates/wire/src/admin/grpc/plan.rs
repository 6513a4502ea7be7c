//! Plans with their changes, reasons and progress.

use crate::Malformed;
use crate::admin::conversion::{origin, origin_parts, progress, progress_parts, status, status_parts};
use crate::conversion::Numbered;
use crate::json::{ChangeProgress, PlanOrigin, PlanStatus};
use crate::malformed::sentence;
use crate::malformed::{At, Inside, each, names, required};
use crate::proto::{self, change};
use partage_core::base::id::{PlacementId, PlanId, ShardId};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::keyspace::sharding::Bounds;
use partage_core::plan::{Basis, Change, Plan, Planned, ShownPlan, Status};

fn child_form((bounds, nodes): &(Bounds, Vec<NodeId>)) -> change::Child {
    change::Child { bounds: Some(bounds.into()), nodes: nodes.iter().map(ToString::to_string).collect() }
}

fn child(form: change::Child) -> Result<(Bounds, Vec<NodeId>), Malformed> {
    Ok((required(form.bounds, "bounds")?, names(&form.nodes, "nodes")?))
}

impl From<&Change> for proto::Change {
    fn from(change: &Change) -> Self {
        use change::{Add, Kind, Lead, Merge, Move, Remove, Split};
        let kind = match change {
            Change::Add { shard, node } => Kind::Add(Add { shard: shard.0, node: node.to_string() }),
            Change::Move { shard, from, to } => Kind::Move(Move {
                shard: shard.0,
                from_placement: from.0,
                to_node: to.to_string(),
                from_node: None,
            }),
            Change::Remove { shard, placement } => {
                Kind::Remove(Remove { shard: shard.0, placement: placement.0, node: None })
            }
            Change::Lead { shard, placement } => {
                Kind::Lead(Lead { shard: shard.0, placement: placement.0, node: None })
            }
            Change::Split { shard, children } => {
                Kind::Split(Split { shard: shard.0, children: children.iter().map(child_form).collect() })
            }
            Change::Merge { shards, child } => Kind::Merge(Merge {
                shards: shards.iter().map(|id| id.0).collect(),
                child: Some(child_form(child)),
            }),
        };
        proto::Change { kind: Some(kind) }
    }
}

impl TryFrom<proto::Change> for Change {
    type Error = Malformed;
    fn try_from(form: proto::Change) -> Result<Self, Malformed> {
        use change::Kind;
        Ok(match form.kind {
            Some(Kind::Add(form)) => {
                Change::Add { shard: ShardId(form.shard), node: NodeId::new(&form.node).at("add.node")? }
            }
            Some(Kind::Move(form)) => Change::Move {
                shard: ShardId(form.shard),
                from: PlacementId(form.from_placement),
                to: NodeId::new(&form.to_node).at("move.to_node")?,
            },
            Some(Kind::Remove(form)) => {
                Change::Remove { shard: ShardId(form.shard), placement: PlacementId(form.placement) }
            }
            Some(Kind::Lead(form)) => {
                Change::Lead { shard: ShardId(form.shard), placement: PlacementId(form.placement) }
            }
            Some(Kind::Split(form)) => Change::Split {
                shard: ShardId(form.shard),
                children: each(form.children, "children", child).inside("split")?,
            },
            Some(Kind::Merge(form)) => Change::Merge {
                shards: form.shards.into_iter().map(ShardId).collect(),
                child: child(form.child.ok_or_else(|| Malformed::new("merge.child", "is missing"))?)
                    .inside("merge.child")?,
            },
            None => return Err(Malformed::new("kind", "is missing: a change says what changes")),
        })
    }
}

/// Where a change says on which node the replica is that it names.
fn node_place(kind: &mut change::Kind) -> Option<&mut Option<String>> {
    use change::Kind;
    match kind {
        Kind::Move(change) => Some(&mut change.from_node),
        Kind::Remove(change) => Some(&mut change.node),
        Kind::Lead(change) => Some(&mut change.node),
        Kind::Add(_) | Kind::Split(_) | Kind::Merge(_) => None,
    }
}

impl From<&Planned> for proto::Planned {
    fn from(planned: &Planned) -> Self {
        let (progress, dropped_because) = progress_parts(&planned.progress);
        let mut change = proto::Change::from(&planned.change);
        if let (Some(place), Some(node)) = (change.kind.as_mut().and_then(node_place), &planned.node) {
            *place = Some(node.to_string());
        }
        proto::Planned {
            change: Some(change),
            reason: planned.reason.clone(),
            progress: progress.number(),
            dropped_because: dropped_because.unwrap_or_default(),
        }
    }
}

impl TryFrom<proto::Planned> for Planned {
    type Error = Malformed;
    fn try_from(form: proto::Planned) -> Result<Self, Malformed> {
        let word = ChangeProgress::in_field(form.progress, "progress")?;
        let progress = progress(word, Some(form.dropped_because));
        let mut change = form.change;
        let node = change.as_mut().and_then(|change| node_place(change.kind.as_mut()?)?.take());
        let node = node.map(|node| NodeId::new(&node).at("change.node")).transpose()?;
        Ok(Planned { change: required(change, "change")?, reason: sentence(form.reason), progress, node })
    }
}

fn basis_form(basis: Basis) -> proto::PlanBasis {
    let [requests_per_s, cpu_ms_per_s, size_bytes] = basis.load;
    proto::PlanBasis { print: basis.print, requests_per_s, cpu_ms_per_s, size_bytes }
}

fn basis(form: proto::PlanBasis) -> Basis {
    let load = [form.requests_per_s, form.cpu_ms_per_s, form.size_bytes];
    Basis { print: form.print, load }
}

impl From<&Plan> for proto::Plan {
    fn from(plan: &Plan) -> Self {
        let (origin, person) = origin_parts(&plan.origin);
        let (status, refused_because) = status_parts(&plan.status);
        proto::Plan {
            id: plan.id.0,
            keyspace: plan.keyspace.to_string(),
            base: Some(plan.base.into()),
            origin: origin.number(),
            person: person.unwrap_or_default(),
            changes: plan.changes.iter().map(Into::into).collect(),
            status: status.number(),
            refused_because: refused_because.unwrap_or_default(),
            made_ms: plan.made_ms,
            decided_by: plan.decided_by.clone(),
            rejected_basis: match plan.status {
                Status::Rejected(basis) => Some(basis_form(basis)),
                _ => None,
            },
        }
    }
}

impl From<&ShownPlan> for proto::Plan {
    fn from(shown: &ShownPlan) -> Self {
        let mut form = proto::Plan::from(&shown.plan);
        for (form, planned) in form.changes.iter_mut().zip(&shown.changes) {
            let node = planned.change.replica().and_then(|(_, placement)| shown.nodes.get(&placement));
            let place = form.change.as_mut().and_then(|change| node_place(change.kind.as_mut()?));
            if let (Some(place), Some(node)) = (place, node) {
                *place = Some(node.to_string());
            }
        }
        form
    }
}

impl TryFrom<proto::Plan> for Plan {
    type Error = Malformed;
    fn try_from(form: proto::Plan) -> Result<Self, Malformed> {
        let origin = origin(PlanOrigin::in_field(form.origin, "origin")?, Some(form.person));
        let based_on = || Ok(form.rejected_basis.map(basis).unwrap_or_default());
        let status =
            status(PlanStatus::in_field(form.status, "status")?, Some(form.refused_because), based_on)?;
        Ok(Plan {
            id: PlanId(form.id),
            keyspace: KeyspaceName::new(&form.keyspace).at("keyspace")?,
            base: required(form.base, "base")?,
            origin,
            changes: each(form.changes, "changes", Planned::try_from)?,
            status,
            made_ms: form.made_ms,
            decided_by: form.decided_by,
        })
    }
}
