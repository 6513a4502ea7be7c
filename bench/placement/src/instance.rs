//! Instances: seeded problems, and the text files in which both we and the peer read them.
//!
//! ```text
//! metrics 2 0.01            how many, tolerance of each
//! nodes 50
//! 3 accepts                 rack, standing; one line a node
//! shards 333 3              how many, replicas of each
//! 7 12 44 1.25 0.5          its nodes, the load of one replica in each metric; one line a shard
//! ```

use partage_core::base::name::NodeId;
use partage_core::placement::{Metric, NodeSpec, Placement, Problem, Rule, Spread, Standing};
use std::fmt::Write as _;

/// What problem is generated: its size, and how its loads are spread.
#[derive(Debug, Clone, Copy)]
pub struct Recipe {
    pub shards: usize,
    pub replicas: usize,
    pub nodes: usize,
    pub racks: usize,
    pub metrics: usize,
    pub tolerance: f64,
    /// Sigma of the lognormal loads: the heaviness of the tail.
    pub sigma: f64,
    /// Every so many-th node is drained; 0 for none.
    pub drain_every: usize,
    pub seed: u64,
}

/// A stream of numbers that depends on the seed alone (SplitMix64).
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Uniform in (0, 1].
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Standard normal (Box and Muller).
    fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }
}

impl Recipe {
    /// The problem: lognormal loads, half correlated over the metrics and cut at a third of a node's
    /// mean; replicas on nodes drawn at random from distinct racks.
    pub fn cook(&self) -> Problem {
        let mut dice = Dice(self.seed);
        let mut problem = Problem::new(self.node_list(), vec![self.replicas as u8; self.shards]);
        problem.metrics = metrics(self.metrics, self.tolerance);
        problem.capacities = vec![1.0; self.nodes * self.metrics];
        problem.rules = vec![hard_racks()];
        for _ in 0..self.shards {
            let common = dice.normal();
            for _ in 0..self.metrics {
                let z = 0.5 * common + 0.75_f64.sqrt() * dice.normal();
                problem.loads.push((self.sigma * z).exp());
            }
        }
        for metric in 0..self.metrics {
            let of = || (metric..self.shards * self.metrics).step_by(self.metrics);
            let total: f64 = of().map(|at| problem.loads[at]).sum();
            let most = total * self.replicas as f64 / self.nodes as f64 / 3.0;
            of().for_each(|at| problem.loads[at] = (problem.loads[at].min(most) * 1e6).round() / 1e6);
        }
        let racks: Vec<u32> = problem.nodes.iter().map(|node| node.rack).collect();
        problem.current = (0..self.shards)
            .map(|_| {
                let mut chosen: Vec<u32> = Vec::with_capacity(self.replicas);
                while chosen.len() < self.replicas {
                    let node = dice.below(self.nodes) as u32;
                    if chosen.iter().all(|other| racks[*other as usize] != racks[node as usize]) {
                        chosen.push(node);
                    }
                }
                chosen
            })
            .collect();
        problem
    }

    fn node_list(&self) -> Vec<NodeSpec> {
        (0..self.nodes)
            .map(|at| {
                let mut node = node(at);
                node.rack = (at % self.racks) as u32;
                if self.drain_every > 0 && at % self.drain_every == self.drain_every / 2 {
                    node.standing = Standing::Drains;
                }
                node
            })
            .collect()
    }
}

/// The node with this number, which is also its ring index.
pub fn node(at: usize) -> NodeSpec {
    NodeSpec::new(NodeId::new(&format!("n{at}")).expect("a letter and digits"), at as u32)
}

fn metrics(count: usize, tolerance: f64) -> Vec<Metric> {
    let names = ["cpu", "memory", "requests", "bytes"];
    let metric = |name: &&str| Metric { name: (*name).into(), tolerance, limit: None };
    names[..count].iter().map(metric).collect()
}

fn hard_racks() -> Rule {
    Rule { rack: Spread::Hard, zone: Spread::Ignore, ..Rule::default() }
}

/// The problem as text.
pub fn write(problem: &Problem) -> String {
    let mut text = String::new();
    let line = |text: &mut String, line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    let metrics = problem.metrics.len();
    line(&mut text, format!("metrics {metrics} {}", problem.metrics[0].tolerance));
    line(&mut text, format!("nodes {}", problem.nodes.len()));
    for node in &problem.nodes {
        let standing = format!("{:?}", node.standing).to_lowercase();
        line(&mut text, format!("{} {standing}", node.rack));
    }
    line(&mut text, format!("shards {} {}", problem.shard_count(), problem.replicas[0]));
    for (shard, nodes) in problem.current.iter().enumerate() {
        for node in nodes {
            let _ = write!(text, "{node} ");
        }
        let loads = &problem.loads[shard * metrics..(shard + 1) * metrics];
        let loads: Vec<String> = loads.iter().map(f64::to_string).collect();
        line(&mut text, loads.join(" "));
    }
    text
}

/// The problem of a text; says what is wrong where.
pub fn read(text: &str) -> Result<Problem, String> {
    let mut words = text.split_ascii_whitespace();
    let mut expect = |word: &str| match words.next() {
        Some(found) if found == word => Ok(()),
        found => Err(format!("{word:?} expected, {found:?} found")),
    };
    expect("metrics")?;
    let rest: Vec<&str> = text.split_ascii_whitespace().skip(1).collect();
    let mut at = 0;
    let mut word = || {
        at += 1;
        rest.get(at - 1).copied().ok_or("the file ends too early".to_owned())
    };
    let number = |word: &str| word.parse::<f64>().map_err(|error| format!("{word:?}: {error}"));
    let (count, tolerance) = (number(word()?)? as usize, number(word()?)?);
    let nodes = number(word().and_then(|_| word())?)? as usize;
    let mut specs = Vec::with_capacity(nodes);
    for index in 0..nodes {
        let mut spec = node(index);
        spec.rack = number(word()?)? as u32;
        spec.standing = match word()? {
            "accepts" => Standing::Accepts,
            "keeps" => Standing::Keeps,
            "drains" => Standing::Drains,
            "gone" => Standing::Gone,
            other => return Err(format!("{other:?} is no standing")),
        };
        specs.push(spec);
    }
    let shards = number(word().and_then(|_| word())?)? as usize;
    let replicas = number(word()?)? as usize;
    let mut problem = Problem::new(specs, vec![replicas as u8; shards]);
    problem.metrics = metrics(count, tolerance);
    problem.capacities = vec![1.0; nodes * count];
    problem.rules = vec![hard_racks()];
    problem.current = Placement::with_capacity(shards, shards * replicas);
    for _ in 0..shards {
        let on: Result<Vec<u32>, String> = (0..replicas).map(|_| Ok(number(word()?)? as u32)).collect();
        problem.current.push(on?);
        for _ in 0..count {
            problem.loads.push(number(word()?)?);
        }
    }
    Ok(problem)
}
