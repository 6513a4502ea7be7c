//! What the bench itself asks of a pool: to start a shuffle, to seal it, and to delete it.

use super::job::Job;
use crate::Got;
use bench_gauge::{now, rest};
use partage_shuffle_client::{Address, Client, Sealed, Settings, Shuffle, ShuffleId, StartOptions};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// How long a seal may say that input partitions are lacking that were acknowledged: nodes that were lost come back meanwhile.
const LACKS: Duration = Duration::from_secs(60);

/// A client in this process.
pub struct Control {
    runtime: Runtime,
    client: Client,
}

impl Control {
    /// Connects to a pool of these nodes.
    pub fn new(nodes: Vec<Address>) -> Got<Control> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let client = runtime.block_on(Client::connect(nodes, Settings::default()))?;
        Ok(Control { runtime, client })
    }

    /// Starts a shuffle in which the records of the job can be written.
    pub fn start(&self, job: &Job) -> Got<Shuffle> {
        Ok(self.runtime.block_on(self.client.start(&options(job)))?)
    }

    /// Seals it. Each input partition was acknowledged: one that is said to be lacking for long is lost.
    pub fn seal(&self, shuffle: ShuffleId, job: &Job) -> Got<()> {
        let end = now() + LACKS;
        loop {
            let sealed = self.runtime.block_on(self.client.seal(shuffle, 0..job.inputs))?;
            match sealed {
                Sealed::Whole { records, bytes } if (records, bytes) == (job.records, job.bytes()) => {
                    return Ok(());
                }
                Sealed::Whole { records, bytes } => {
                    let what = format!("{records} records of {bytes} bytes are sealed");
                    return Err(format!("{what}, and {} of {} were written", job.records, job.bytes()).into());
                }
                Sealed::Lacks(partitions) if now() > end => {
                    let what = "input partitions were acknowledged, and are lacking when it is sealed";
                    return Err(format!("{} {what}: {partitions:?}", partitions.len()).into());
                }
                Sealed::Lacks(_) => rest(500),
            }
        }
    }

    /// Deletes the shuffle from the pool.
    pub fn delete(&self, shuffle: ShuffleId) -> Got<()> {
        Ok(self.runtime.block_on(self.client.delete(shuffle))?)
    }
}

/// With what a shuffle of such records is started.
pub fn options(job: &Job) -> StartOptions {
    let (partitions, bytes, durability) = (job.partitions, job.bytes(), job.durability);
    StartOptions { partitions, bytes, durability, ..StartOptions::default() }
}
