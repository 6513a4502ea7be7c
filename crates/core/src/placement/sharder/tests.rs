use super::*;
use crate::placement::{POLICIES, by_name};

fn nodes(range: std::ops::Range<usize>) -> Vec<NodeId> {
    range.map(|at| NodeId::new(&format!("n{at}")).unwrap()).collect()
}

fn partitions(range: std::ops::Range<usize>) -> Vec<PartitionName> {
    range.map(|at| PartitionName::new(&format!("p{at:02}")).unwrap()).collect()
}

fn filled(policy: &str) -> PolicySharder {
    let mut sharder = PolicySharder::new(by_name(policy).unwrap(), 2, 7).unwrap();
    sharder.register_nodes(&nodes(0..5)).unwrap();
    sharder.register_partitions(&partitions(0..20)).unwrap();
    sharder
}

fn agrees(sharder: &PolicySharder) {
    for (partition, on) in sharder.list() {
        assert_eq!(sharder.nodes_of(partition).unwrap(), on);
    }
    for node in sharder.tables.nodes.keys() {
        let held = sharder.partitions_of(node).unwrap();
        let listed =
            sharder.list().filter(|(_, on)| on.contains(node)).map(|(partition, _)| partition.clone());
        assert_eq!(held, listed.collect::<Vec<_>>());
    }
}

#[test]
fn sa_a_call_with_one_bad_name_changes_nothing() {
    let mut sharder = filled("work_stealing");
    let before = sharder.to_string();
    assert!(sharder.register_nodes(&nodes(4..9)).is_err());
    assert!(sharder.unregister_nodes(&nodes(4..6)).is_err());
    assert!(sharder.register_partitions(&partitions(19..25)).is_err());
    assert!(sharder.unregister_partitions(&partitions(19..25)).is_err());
    assert_eq!(sharder.to_string(), before);
}

#[test]
fn sb_duplicates_and_unknown_names_are_named() {
    let mut sharder = filled("work_stealing");
    let (node, partition) = (nodes(4..5).remove(0), partitions(3..4).remove(0));
    assert_eq!(
        sharder.register_nodes(std::slice::from_ref(&node)),
        Err(SharderError::DuplicateNode { node: node.clone() })
    );
    let twice = [partitions(50..51), partitions(50..51)].concat();
    assert_eq!(
        sharder.register_partitions(&twice),
        Err(SharderError::DuplicatePartition { partition: twice[0].clone() })
    );
    sharder.unregister_nodes(std::slice::from_ref(&node)).unwrap();
    assert_eq!(sharder.partitions_of(&node), Err(SharderError::UnknownNode { node }));
    sharder.unregister_partitions(std::slice::from_ref(&partition)).unwrap();
    let error = sharder.nodes_of(&partition).unwrap_err();
    assert_eq!(error.to_string(), "partition p03 is not registered: register it first");
    assert!(PolicySharder::new(by_name("ring").unwrap(), 0, 0).is_err());
}

#[test]
fn sc_the_two_questions_agree_whatever_the_policy_and_the_change() {
    for policy in POLICIES {
        let mut sharder = filled(policy);
        agrees(&sharder);
        sharder.unregister_nodes(&nodes(1..3)).unwrap();
        agrees(&sharder);
        sharder.register_nodes(&nodes(7..9)).unwrap();
        sharder.unregister_partitions(&partitions(4..9)).unwrap();
        sharder.rebalance().unwrap();
        agrees(&sharder);
        assert!(sharder.list().all(|(_, on)| on.len() == 2), "{policy}");
        assert_eq!(sharder.unplaced(), &[] as &[String], "{policy}");
    }
}

#[test]
fn sd_the_tables_can_be_drawn() {
    let mut sharder = PolicySharder::new(by_name("ring_index").unwrap(), 3, 0).unwrap();
    sharder.register_nodes(&nodes(0..5)).unwrap();
    sharder.register_partitions(&partitions(0..5)).unwrap();
    let drawn = sharder.to_string();
    // S11's example, with the number of each replica.
    let expected = ["n0 02·1· 3", "n1 1·02· 3", "n2 2·1·0 3", "n3 ·02·1 3", "n4 ·1·02 3"];
    assert_eq!(drawn.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn se_what_cannot_be_placed_is_kept_with_its_reason() {
    let mut sharder = PolicySharder::new(by_name("balanced").unwrap(), 3, 0).unwrap();
    sharder.register_partitions(&partitions(0..1)).unwrap();
    assert!(sharder.unplaced()[0].contains("no node takes new replicas: add a node"));
    sharder.register_nodes(&nodes(0..2)).unwrap();
    assert_eq!(sharder.nodes_of(&partitions(0..1)[0]).unwrap().len(), 2);
    assert!(
        sharder.unplaced()[0]
            .ends_with("3 distinct nodes and 2 are eligible: add a node or lower the replicas")
    );
    sharder.register_nodes(&nodes(2..3)).unwrap();
    assert_eq!(sharder.unplaced(), &[] as &[String]);
}

/// The whole contract in the user's own way: everything is on the first nodes, in the order of their names.
#[derive(Default)]
struct FirstNodes {
    nodes: BTreeSet<NodeId>,
    replicas: usize,
}

impl Sharder for FirstNodes {
    fn register_nodes(&mut self, nodes: &[NodeId]) -> Result<(), SharderError> {
        self.nodes.extend(nodes.iter().cloned());
        Ok(())
    }
    fn unregister_nodes(&mut self, nodes: &[NodeId]) -> Result<(), SharderError> {
        self.nodes.retain(|node| !nodes.contains(node));
        Ok(())
    }
    fn register_partitions(&mut self, _: &[PartitionName]) -> Result<(), SharderError> {
        Ok(())
    }
    fn unregister_partitions(&mut self, _: &[PartitionName]) -> Result<(), SharderError> {
        Ok(())
    }
    fn partitions_of(&self, node: &NodeId) -> Result<Vec<PartitionName>, SharderError> {
        Err(SharderError::UnknownNode { node: node.clone() })
    }
    fn nodes_of(&self, _: &PartitionName) -> Result<Vec<NodeId>, SharderError> {
        Ok(self.nodes.iter().take(self.replicas).cloned().collect())
    }
}

#[test]
fn a3_a_sharder_of_one_s_own_places_for_the_coordinator() {
    let policy = BySharder::new("first_nodes", |replicas: u8| {
        Ok(FirstNodes { replicas: replicas.into(), ..FirstNodes::default() })
    });
    let specs = nodes(0..4).into_iter().zip(0..).map(|(name, at)| NodeSpec::new(name, at)).collect();
    let mut problem = Problem::new(specs, vec![2, 1, 2]);
    let solution = policy.place(&problem).unwrap();
    assert_eq!(solution.placement.iter().collect::<Vec<_>>(), [&[0, 1][..], &[0], &[0, 1]]);
    // Its wishes give way to the state of the nodes; who leaves is not even offered.
    (problem.current, problem.nodes[0].standing) = (solution.placement, Standing::Drains);
    let solution = policy.place(&problem).unwrap();
    assert_eq!(solution.check(&problem), Ok(()));
    assert_eq!(solution.placement.iter().collect::<Vec<_>>(), [&[1, 2][..], &[1], &[1, 2]]);
}

#[test]
fn a3_a_sharder_that_refuses_is_named_and_ours_can_be_brought_too() {
    let problem = Problem::new(vec![NodeSpec::new(nodes(0..1).remove(0), 0)], vec![1]);
    let never = BySharder::new("never", |replicas: u8| -> Result<FirstNodes, _> {
        Err(SharderError::Replicas { replicas })
    });
    let error = never.place(&problem).unwrap_err().to_string();
    assert!(error.contains("policy never refuses: 1 replicas cannot be"), "{error}");
    let ours =
        BySharder::new("ours", |replicas: u8| PolicySharder::new(by_name("ring").unwrap(), replicas, 0));
    assert_eq!(ours.place(&problem).unwrap().placement.of(0), [0]);
}
