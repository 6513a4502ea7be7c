//! Who leads, as the coordinators say themselves, beside whom the election names: one must lead, and it must be the
//! one that was elected.
//!
//! A coordinator writes into its own key below `coordinators/` at which term it leads, once it answers as a leader, and
//! the key goes with its session. So one that was elected and cannot begin, because its records are damaged, is not
//! listed as a leader; and two that lead at once are seen by all, also when the election key was deleted under the
//! first of them.

use partage_core::cluster::Problem;
use partage_wire::json::Coordinator;
use partage_wire::stored::Presence;

/// What is wrong with those that say they lead, and the way out. `elected` is who the election names, and its term.
pub fn problems(elected: Option<(&str, u64)>, present: &[Presence]) -> Vec<Problem> {
    let mut leading: Vec<(&str, u64)> =
        present.iter().filter_map(|one| Some((one.id.as_str(), one.leads?))).collect();
    leading.sort_by_key(|(_, term)| *term);
    let named =
        leading.iter().map(|(id, term)| format!("{id} at term {term}")).collect::<Vec<_>>().join(", ");
    let way_out = "the former one steps down within the time-to-live of its session; if this stays, stop all \
                   coordinators but one and see \"Restoring\" in the book's page on the backend";
    let what = match (leading.as_slice(), elected) {
        ([], _) => return vec![],
        ([_, _, ..], _) => format!("{} coordinators lead at once: {named}", leading.len()),
        ([only], Some(elected)) if *only == elected => return vec![],
        ([_], Some((id, term))) => format!("{named} leads, and the election names {id} at term {term}"),
        ([_], None) => format!("{named} leads, and the election names no leader"),
    };
    vec![Problem { what, way_out: way_out.to_owned() }]
}

/// A row for each: who leads first, then who was elected and does not answer yet, then the others.
pub fn rows(
    elected: Option<(&str, u64)>,
    elected_presence: Option<&Presence>,
    present: &[Presence],
) -> Vec<Coordinator> {
    let term_of =
        |one: &Presence| one.leads.or_else(|| elected.filter(|(id, _)| *id == one.id).map(|(_, term)| term));
    let row = |one: &Presence| Coordinator {
        id: one.id.clone(),
        address: one.address.clone(),
        leads: one.leads.is_some(),
        term: term_of(one),
        since_ms: one.since_ms,
        version: one.version.clone(),
    };
    // One that was elected and whose own key is gone has just ended, or somebody has deleted the key.
    let missing = elected_presence.filter(|leader| !present.iter().any(|one| one.id == leader.id));
    let mut rows: Vec<_> = present.iter().chain(missing).map(row).collect();
    rows.sort_by_key(|one| (!one.leads, one.term.is_none()));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(id: &str, leads: Option<u64>) -> Presence {
        let (address, version) = (format!("{id}:7400"), "0.1.0".to_owned());
        Presence { id: id.to_owned(), address, since_ms: 1, version, leads }
    }

    fn text(problems: Vec<Problem>) -> String {
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn two_that_lead_and_one_that_was_not_elected_are_named() {
        let (c1, c2) = (one("c1", Some(2)), one("c2", None));
        assert_eq!(problems(Some(("c1", 2)), &[c1.clone(), c2.clone()]), Vec::<Problem>::new());
        assert_eq!(problems(Some(("c1", 2)), &[one("c1", None), c2.clone()]), Vec::<Problem>::new());
        let two = text(problems(Some(("c2", 3)), &[c1.clone(), one("c2", Some(3))]));
        assert!(two.contains("2 coordinators lead at once: c1 at term 2, c2 at term 3"), "{two}");
        let other = text(problems(Some(("c2", 3)), &[c1.clone(), c2]));
        assert!(other.contains("c1 at term 2 leads, and the election names c2 at term 3"), "{other}");
        let unnamed = text(problems(None, &[c1]));
        assert!(unnamed.contains("the election names no leader"), "{unnamed}");
    }

    #[test]
    fn one_that_was_elected_and_does_not_answer_is_no_leader() {
        let listed = |present: &[Presence]| {
            let elected = one("c2", None);
            let rows = rows(Some(("c2", 3)), Some(&elected), present);
            rows.into_iter().map(|row| (row.id, row.leads, row.term)).collect::<Vec<_>>()
        };
        let (c1, c2) = (("c1".to_owned(), false, None), ("c2".to_owned(), false, Some(3)));
        assert_eq!(listed(&[one("c1", None), one("c2", None)]), [c2.clone(), c1.clone()]);
        assert_eq!(listed(&[one("c1", None)]), [c2, c1.clone()]);
        assert_eq!(listed(&[one("c1", None), one("c2", Some(3))]), [("c2".to_owned(), true, Some(3)), c1]);
    }
}
