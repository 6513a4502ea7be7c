//! Each shape of a transaction, and that random ones keep the tree whole.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::*;
use crate::transaction::Expected;

const SESSION: SessionId = SessionId::new(5);
const OTHER: SessionId = SessionId::new(6);

fn key(path: &str) -> Key {
    Key::new(path).unwrap()
}

fn version(number: u64) -> Version {
    Version::new(number)
}

/// What is there: paths with what they are, and every znode above them.
fn known(nodes: &[(&str, Kind)], looked_at: BTreeSet<Key>) -> Known {
    let mut known: Known = looked_at.into_iter().map(|key| (key, None)).collect();
    let node = |kind| Node {
        kind,
        value: Bytes::new(),
        data_version: 3,
        changed: version(7),
        children_changed: version(7),
        children: 0,
    };
    let mut all: BTreeMap<Key, Kind> = nodes.iter().map(|(path, kind)| (key(path), *kind)).collect();
    for (path, _) in nodes {
        for above in ancestors(&key(path)) {
            all.entry(above).or_insert(Kind::Intermediate);
        }
    }
    for (key, kind) in &all {
        known.insert(key.clone(), Some(node(*kind)));
    }
    for key in all.keys() {
        if let Some(Some(above)) = key.parent().and_then(|parent| known.get_mut(&parent)) {
            above.children += 1;
        }
    }
    known
}

/// The steps in short: `+a` made, `+a!` made ephemeral, `+a/` made intermediate, `=a` set, `=a/` set to intermediate, `-a`
/// deleted, `?a` checked.
fn steps(transaction: &Transaction, nodes: &[(&str, Kind)]) -> String {
    let known = known(nodes, looked_at(transaction));
    let plan = match plan(transaction, &known, &BTreeSet::new()) {
        Ok(plan) => plan,
        Err(PlanError::Below(key)) => return format!("what is below {key}?"),
        Err(PlanError::Refused(error)) => return error.to_string(),
    };
    let suffix = |value: &Option<Bytes>| if value.is_some() { "" } else { "/" };
    let shown = plan.steps.iter().map(|step| match step {
        Step::Check { key, data_version: 3 } => format!("?{key}"),
        Step::Create { key, value, ephemeral } => {
            format!("+{key}{}{}", suffix(value), if *ephemeral { "!" } else { "" })
        }
        Step::Set { key, value, data_version: 3 } => format!("={key}{}", suffix(value)),
        Step::Delete { key, data_version: 3 } => format!("-{key}"),
        other => panic!("a version nobody has read: {other:?}"),
    });
    shown.collect::<Vec<_>>().join(" ")
}

/// A transaction, what is there, and the steps in short.
type Case<'a> = (Transaction, &'a [(&'a str, Kind)], &'a str);

#[test]
fn steps_of_each_shape() {
    use Kind::{Ephemeral, Foreign, Intermediate, Lasting};
    let put = |path| Transaction::new().put(&key(path), "v");
    let own = |path| Transaction::new().put_ephemeral(&key(path), "v", SESSION);
    let delete = |path| Transaction::new().delete(&key(path));
    let mine = Ephemeral(SESSION);
    let cases: &[Case<'_>] = &[
        (put("a"), &[], "+a"),
        (put("a"), &[("a", Lasting)], "=a"),
        (put("a/b/c"), &[], "+a/ +a/b/ +a/b/c"),
        (put("a/b/c"), &[("a/x", Lasting)], "+a/b/ +a/b/c"),
        (put("a"), &[("a/b", Lasting)], "=a"),
        (delete("a"), &[], ""),
        (delete("a"), &[("a", Lasting)], "-a"),
        (delete("a"), &[("a", Lasting), ("a/b", Lasting)], "=a/"),
        (delete("a"), &[("a/b", Lasting)], ""),
        (delete("a/b/c"), &[("a/b/c", Lasting)], "-a/b/c -a/b -a"),
        (delete("a/b/c"), &[("a/b/c", Lasting), ("a", Lasting)], "-a/b/c -a/b"),
        (delete("a/b/c"), &[("a/b/c", Lasting), ("a/x", mine)], "-a/b/c -a/b"),
        (delete("a").delete(&key("a/b")), &[("a", Lasting), ("a/b", Lasting)], "-a/b -a"),
        (delete("a/b").put(&key("a/c"), "v"), &[("a/b", Lasting)], "-a/b +a/c"),
        (own("a/b"), &[], "+a/ +a/b!"),
        (own("a"), &[("a", mine)], "=a"),
        (own("a"), &[("a", Ephemeral(OTHER))], "-a +a!"),
        (own("a"), &[("a", Lasting)], "-a +a!"),
        (put("a"), &[("a", mine)], "-a +a"),
        (own("a"), &[("a/b", Lasting)], "what is below a?"),
        (own("a").delete(&key("a/b")), &[("a/b", Lasting)], "-a/b -a +a!"),
        (own("a").put(&key("a/b"), "v"), &[], "what is below a?"),
        (put("a/b/c"), &[("a", mine)], "key `a/b/c` would lie below the ephemeral key `a`: put it elsewhere"),
        (delete("a").put(&key("a/b"), "v"), &[("a", mine)], "-a +a/ +a/b"),
        // An intermediate znode without children is removed, too.
        (delete("a/b"), &[("a/b", Intermediate)], "-a/b -a"),
        (put("a").when(&key("e"), Expected::At(version(7))), &[("e", mine)], "?e +a"),
        (put("a").when(&key("e"), Expected::Present), &[("e", Lasting)], "+a"),
        (put("a").when(&key("e"), Expected::Absent), &[("e", Intermediate)], "+a"),
        (
            put("a").when(&key("e"), Expected::Absent),
            &[("e", mine)],
            "key `e` was expected absent but is at v7: read it again",
        ),
    ];
    for (transaction, nodes, wanted) in cases {
        assert_eq!(steps(transaction, nodes), *wanted, "{transaction:?} on {nodes:?}");
    }
    for (transaction, at) in [
        (put("a"), "a"),
        (delete("a"), "a"),
        (put("a/b"), "a"),
        (put("b").when(&key("a"), Expected::Absent), "a"),
    ] {
        let said = steps(&transaction, &[(at, Foreign)]);
        assert!(said.contains("key `a` holds what this program did not write"), "{said}");
    }
}

#[test]
fn ways_below_an_ephemeral_key_are_swept() {
    let transaction = Transaction::new().put_ephemeral(&key("a"), "v", SESSION);
    let intermediates = [key("a/b"), key("a/b/c")];
    let known = known(&[("a/b/c", Kind::Intermediate)], looked_at(&transaction));
    let plan = plan(&transaction, &known, &intermediates.into()).unwrap();
    let done: Vec<&str> = plan.steps.iter().map(|step| step.key().as_str()).collect();
    assert_eq!(done, ["a/b/c", "a/b", "a", "a"]);
}

#[test]
fn two_sessions_in_one_transaction_are_refused_by_name() {
    let one = Transaction::new().put_ephemeral(&key("a"), "v", SESSION);
    assert_eq!(session_of(&one), Ok(Some(SESSION)));
    assert_eq!(session_of(&Transaction::new().put(&key("a"), "v")), Ok(None));
    let error = session_of(&one.put_ephemeral(&key("b"), "v", OTHER)).unwrap_err();
    assert!(error.to_string().contains("ephemeral keys of two sessions"), "{error}");
}

const PATHS: [&str; 7] = ["a", "a/b", "a/b/c", "a/d", "e", "e/f", "g/h/i"];

/// A tree that does what ZooKeeper does, and refuses what it refuses.
fn carry_out(tree: &mut Known, steps: &[Step]) {
    for step in steps {
        let key = step.key();
        let there = tree.get(key).cloned().flatten();
        let (after, children) = match (step, there) {
            (Step::Create { value, ephemeral, .. }, None) => {
                let kind = if *ephemeral { Kind::Ephemeral(SESSION) } else { kind_of(value) };
                (Some(kind), 1)
            }
            (Step::Set { value, .. }, Some(node)) => {
                let kind = if is_ephemeral(node.kind) { node.kind } else { kind_of(value) };
                (Some(kind), 0)
            }
            (Step::Delete { .. }, Some(node)) if node.children == 0 => (None, -1),
            (Step::Check { .. }, Some(node)) => (Some(node.kind), 0),
            (step, there) => panic!("ZooKeeper refuses {step:?} on {there:?}"),
        };
        let mut node = tree.get(key).cloned().flatten().unwrap_or(Node {
            kind: Kind::Intermediate,
            value: Bytes::new(),
            data_version: 0,
            changed: version(1),
            children_changed: version(1),
            children: 0,
        });
        node.kind = after.unwrap_or(Kind::Intermediate);
        tree.insert(key.clone(), after.map(|_| node));
        if let Some(parent) = key.parent() {
            let above = tree.get_mut(&parent).and_then(Option::as_mut).expect("a way leads there");
            assert!(!is_ephemeral(above.kind) || children == 0, "a child of an ephemeral znode");
            above.children = above.children.checked_add_signed(children).unwrap();
        }
    }
}

fn kind_of(value: &Option<Bytes>) -> Kind {
    if value.is_some() { Kind::Lasting } else { Kind::Intermediate }
}

proptest! {
    /// Whatever is asked, in whatever order: the steps go through, the keys are as asked, no intermediate znode is left
    /// over, and what is kept for the next commit is what is there.
    #[test]
    fn the_tree_stays_whole(all in vec(btree_map(0..PATHS.len(), 0..4_u8, 1..4), 1..30)) {
        let mut tree: Known = PATHS.iter().map(|path| (key(path), None)).collect();
        let mut model: BTreeMap<Key, bool> = BTreeMap::new();
        let mut at = 1;
        for operations in all {
            let mut transaction = Transaction::new();
            let mut next = model.clone();
            for (number, kind) in operations {
                let key = key(PATHS[number]);
                transaction = match kind {
                    0 => transaction.delete(&key),
                    1 => transaction.put_ephemeral(&key, "v", SESSION),
                    _ => transaction.put(&key, "v"),
                };
                if kind == 0 { next.remove(&key); } else { next.insert(key, kind == 1); }
            }
            for above in looked_at(&transaction) {
                tree.entry(above).or_insert(None);
            }
            let below_ephemeral = next.keys().any(|below| {
                ancestors(below).any(|above| next.get(&above) == Some(&true))
            });
            match plan(&transaction, &tree, &BTreeSet::new()) {
                Ok(plan) => {
                    prop_assert!(!below_ephemeral);
                    let mut kept = tree.clone();
                    carry_out(&mut tree, &plan.steps);
                    at += 1;
                    plan.apply(&mut kept, version(at));
                    let shape = |known: &Known| -> Vec<_> {
                        known.iter().map(|(key, node)| (key.clone(), node.as_ref().map(|node| (node.kind, node.children)))).collect()
                    };
                    prop_assert_eq!(shape(&kept), shape(&tree));
                    tree = kept;
                    model = next;
                }
                Err(_) => prop_assert!(below_ephemeral),
            }
            let keys: BTreeMap<Key, bool> = tree.iter().filter_map(|(key, node)| match node.as_ref()?.kind {
                Kind::Intermediate => None,
                kind => Some((key.clone(), is_ephemeral(kind))),
            }).collect();
            prop_assert_eq!(&keys, &model);
            for (key, node) in &tree {
                if let Some(node) = node {
                    prop_assert!(node.kind != Kind::Intermediate || node.children > 0, "{} leads nowhere", key);
                }
            }
        }
    }
}
