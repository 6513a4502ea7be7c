//! The process of a client that writes little: one small attempt after the other, at a pace, and how long each takes until it is
//! acknowledged.

use super::job::Job;
use super::writer::{nodes_of, run};
use crate::Done;
use crate::client_process::ready;
use bench_gauge::{now, say};
use partage_shuffle_client::{Attempt, Client, PackedRecords, Settings, Shuffle};
use std::time::Duration;

/// The arguments of the process, which writes each input partition of a job.
pub fn words(shuffle: &Shuffle, nodes: &str, every_ms: u64, job: &Job) -> Vec<String> {
    let own = ["ours-trickle", &shuffle.to_string(), nodes, &every_ms.to_string()].map(str::to_owned);
    own.into_iter().chain(job.words()).collect()
}

/// What the process does. It says `acked MICROSECONDS` for each attempt.
pub fn process(words: &[String]) -> Done {
    let [_, shuffle, nodes, every_ms, job @ ..] = words else {
        return Err("ours-trickle HANDLE NODES EVERY_MS JOB".into());
    };
    let (job, shuffle, nodes) = (Job::of(job)?, shuffle.parse::<Shuffle>()?, nodes_of(nodes)?);
    let every = Duration::from_millis(every_ms.parse()?);
    let generator = job.generator()?;
    run(async move {
        let client = Client::connect(nodes, Settings::default()).await?;
        ready("ready")?;
        for partition in 0..job.inputs {
            let numbers = job.numbers(partition);
            let mut bytes = vec![0; (numbers.end - numbers.start) as usize * job.shape.record];
            generator.write_all(numbers.start, &mut bytes);
            let records = bytes.chunks_exact(job.shape.record).map(|record| record.split_at(job.shape.key));
            let records = PackedRecords::pack(records);
            let begin = now();
            let produce = |mut attempt: Attempt| {
                let records = records.clone();
                async move {
                    attempt.put(records).await?;
                    attempt.end().await
                }
            };
            client.write(&shuffle, partition, produce).await?;
            say(&format!("acked {}", (now() - begin).as_micros()));
            tokio::time::sleep_until((begin + every).into()).await;
        }
        Ok(ready("done")?)
    })
}
