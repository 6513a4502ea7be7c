//! Two or three plain sentences about what stands out in a comparison.

use super::Answer;
use partage_service::whatif::{Comparison, Moved, Scene, Step};

/// A node this much above its share is worth a sentence.
const UNEVEN: f64 = 1.2;

/// A scheme that moves this many times what an even one must is worth a sentence.
const WASTEFUL: f64 = 1.5;

impl Answer {
    /// What an event moved, in the unit of the table: bytes if they were given, else keys.
    pub(super) fn moved(&self, step: &Step) -> Option<Moved> {
        step.movement.map(|movement| if self.bytes.is_some() { movement.bytes } else { movement.keys })
    }

    /// The unit of [`Answer::moved`].
    pub(super) fn moved_unit(&self) -> &'static str {
        if self.bytes.is_some() { "bytes" } else { "keys" }
    }

    /// What balance is about: the load that was given, or the number of keys.
    pub(super) fn load_word(&self) -> &str {
        self.weight.as_deref().unwrap_or("keys")
    }
}

/// A part of everything; 0 of nothing.
pub(super) fn part(amount: f64, of: f64) -> f64 {
    if of > 0.0 { amount / of } else { 0.0 }
}

/// The part that must move at least from one even state to the next: what the shares of nodes gain.
pub(super) fn least_part(comparison: &Comparison, before: &Scene, after: &Scene) -> f64 {
    let share = |scene: &Scene, at: u32| {
        let capacity = |at: &u32| f64::from(comparison.roster[*at as usize].capacity);
        let whole: f64 = scene.present.iter().map(capacity).sum();
        if scene.present.contains(&at) { capacity(&at) / whole } else { 0.0 }
    };
    after.present.iter().map(|at| (share(after, *at) - share(before, *at)).max(0.0)).sum()
}

/// The sentences, the most general first.
pub fn findings(answer: &Answer) -> Vec<String> {
    [evenness(answer), waste(answer), heat(answer)].into_iter().flatten().collect()
}

/// The schemes that are the most and the least even at the start.
fn evenness(answer: &Answer) -> Option<String> {
    let comparison = &answer.comparison;
    let max = |at: usize| comparison.outcomes[at].steps[0].balances.weight.max_over_mean;
    let all = 0..comparison.outcomes.len();
    let worst = all.clone().max_by(|a, b| max(*a).total_cmp(&max(*b)).then(b.cmp(a)))?;
    let best = all.min_by(|a, b| max(*a).total_cmp(&max(*b)))?;
    let word = answer.load_word();
    let (least, most) = (&comparison.outcomes[best].scheme, &comparison.outcomes[worst]);
    if max(worst) < UNEVEN {
        return Some(format!(
            "At the start every scheme is even: the fullest node has at most {:.2} times its share of {word}.",
            max(worst)
        ));
    }
    let node = &comparison.roster[most.steps[0].hottest_node as usize].name;
    Some(format!(
        "At the start {} gives {node} {:.1} times its share of {word}; the evenest, {least}, gives no node more \
         than {:.2} times.",
        most.scheme,
        max(worst),
        max(best)
    ))
}

/// The scheme that moves the most beyond need.
fn waste(answer: &Answer) -> Option<String> {
    let comparison = &answer.comparison;
    let moved = |outcome: usize, scene: usize| {
        answer
            .moved(&comparison.outcomes[outcome].steps[scene])
            .map_or(0.0, |moved| part(moved.moved, moved.of))
    };
    let least =
        |scene: usize| least_part(comparison, &comparison.scenes[scene - 1], &comparison.scenes[scene]);
    let all = (0..comparison.outcomes.len())
        .flat_map(|outcome| (1..comparison.scenes.len()).map(move |s| (outcome, s)));
    let excess = |at: &(usize, usize)| moved(at.0, at.1) - least(at.1);
    let (outcome, scene) = all.max_by(|a, b| excess(a).total_cmp(&excess(b)).then(b.cmp(a)))?;
    let (most, least) = (moved(outcome, scene), least(scene));
    let title = &comparison.scenes[scene].title;
    let unit = answer.moved_unit();
    if most < WASTEFUL * least || excess(&(outcome, scene)) < 0.01 {
        return Some(format!("No event makes a scheme move much more {unit} than it must."));
    }
    let too: Vec<String> = (0..comparison.outcomes.len())
        .filter(|at| *at != outcome && moved(*at, scene) > WASTEFUL * least + 0.01)
        .map(|at| format!("{} ({:.1} %)", comparison.outcomes[at].scheme, 100.0 * moved(at, scene)))
        .collect();
    let others =
        if too.is_empty() { String::new() } else { format!("; also above need: {}", too.join(", ")) };
    Some(format!(
        "On \"{title}\" {} moves {:.1} % of the {unit} where {:.1} % would do{others}.",
        comparison.outcomes[outcome].scheme,
        100.0 * most,
        100.0 * least,
    ))
}

/// Whether one key is too much for one node.
fn heat(answer: &Answer) -> Option<String> {
    let comparison = &answer.comparison;
    let (at, scene) = comparison.scenes.iter().enumerate().next_back()?;
    let step = &comparison.outcomes.first()?.steps[at];
    let hot = step.hottest_keys.first()?;
    let capacities: f64 =
        scene.present.iter().map(|at| f64::from(comparison.roster[*at as usize].capacity)).sum();
    let largest = scene.present.iter().map(|at| comparison.roster[*at as usize].capacity).max()?;
    let times = part(hot.weight, scene.total.weight) * capacities / f64::from(largest);
    if times < 1.0 {
        return None;
    }
    let salted = comparison
        .outcomes
        .iter()
        .find(|outcome| outcome.steps[at].hottest_keys.first().is_some_and(|k| k.nodes.len() > 1));
    let way = salted.map_or(String::new(), |outcome| {
        let max = outcome.steps[at].balances.weight.max_over_mean;
        format!("; {}, which cuts it up, gets down to {max:.2}", outcome.scheme)
    });
    Some(format!(
        "In the end the key {} alone is {times:.1} times what a node should carry, so no scheme of whole keys can be \
         more even than that{way}.",
        hot.key
    ))
}
