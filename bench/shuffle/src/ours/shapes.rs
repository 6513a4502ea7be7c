//! Inputs that are not uniform, and keys of other lengths: what they cost for each byte, beside uniform ones in the same run.

use super::{job::Job, shuffle, warm};
use crate::{Done, Run};
use bench_gauge::{median, say};
use bench_shuffle::generate::{Input, Shape};

/// What each is at most, in times uniform, for each byte.
const GOAL: f64 = 1.5;
/// Bytes of a value beside keys of other lengths than usual, so that the value of the usual record is among them.
const VALUE: usize = 90;
/// Keys of so many bytes.
const KEYS: [usize; 4] = [1, 100, 1_024, 4_096];

/// All of them, with their names; the first one is the uniform one.
pub fn all(gb: f64) -> Vec<(String, Job)> {
    let inputs = Input::ALL.map(|(input, name)| (name.to_owned(), Job::new(input, Shape::USUAL, gb)));
    let of_key = |key| {
        let shape = Shape { key, record: key + VALUE };
        (format!("key-{key}"), Job::new(Input::Uniform, shape, gb))
    };
    inputs.into_iter().chain(KEYS.map(of_key)).collect()
}

/// Prints what each takes.
pub fn bench(run: &Run) -> Done {
    let wanted = |name: &str| name == "uniform" || run.of.measures(name);
    let shapes: Vec<_> = all(run.gb).into_iter().filter(|(name, _)| wanted(name)).collect();
    for way in run.ways() {
        let mut cluster = warm(run, &format!("shapes-{}", way.name()), way, run.gb / 2.0)?;
        let mut figures: Vec<Vec<f64>> = vec![Vec::new(); shapes.len()];
        for _ in 0..run.of.number("--rounds", 3, 1) {
            for ((_, job), figures) in shapes.iter().zip(&mut figures) {
                figures.push(shuffle::one(&mut cluster, way, job, job.expected()?)?.all());
            }
        }
        let medians: Vec<f64> = figures.into_iter().map(median).collect();
        let uniform = medians.first().copied().unwrap_or(f64::NAN);
        for ((name, _), median) in shapes.iter().zip(&medians) {
            let times = median / uniform;
            say(&format!(
                "{:4} {name:8} {median:.2} core-s/GB, {times:.2} times uniform (goal {GOAL})",
                way.name()
            ));
        }
    }
    Ok(())
}
