//! How a job reads its shuffle: by partitions and by keys, each in turn, until all of it was read in each way.

use super::{Job, Phase, READS, Reading};
use crate::shuffle::world::{Happening, World};
use partage_service::shuffle::Bytes;
use partage_service::shuffle::partition::CutBy;
use partage_service::shuffle::plan::Plan;
use partage_service::shuffle::reader::{Effect, Event, Failed as NotRead, Reader};
use partage_service::shuffle::record::BatchKey;
use std::collections::BTreeSet;
use std::sync::Arc;

impl World {
    pub(super) fn read(&mut self, job: &mut Job) -> Result<(), String> {
        let Some(plan) = job.plan.clone() else { return Ok(()) };
        if job.readings.is_empty() {
            let Some(by) = READS.get(job.outputs.len()) else { return self.has_read(job, &plan) };
            let n = *self.draw.pick(&[1, 2, 3, 7, 20]).unwrap_or(&1);
            job.cuts = job.outputs.first().filter(|_| by.is_none()).map(|parts| {
                let keys: Vec<Bytes> = parts.iter().flatten().map(|one| one.key[..].into()).collect();
                let mut cuts: Vec<Bytes> = (1..n).filter_map(|_| self.draw.pick(&keys).cloned()).collect();
                cuts.sort();
                cuts
            });
            let n = job.cuts.as_ref().map_or(n, |cuts| cuts.len() as u64 + 1);
            for i in 0..n {
                let turn = self.draw.index(8);
                let reader = self.reader(job, &plan, (i, n), turn);
                job.readings.push(Reading { reader, partition: (i, n), got: Vec::new() });
            }
        }
        let now = self.millis();
        for at in 0..job.readings.len() {
            if now >= job.readings[at].reader.wake_at() {
                self.reader_acts(job, at, Event::Tick);
            }
            if job.phase != Phase::Reading {
                return Ok(());
            }
        }
        if job
            .readings
            .iter()
            .all(|reading| reading.reader.wake_at() == partage_core::base::time::Millis::NEVER)
        {
            job.all_read.get_or_insert(self.now);
            let parts = std::mem::take(&mut job.readings).into_iter().map(|reading| reading.got).collect();
            job.outputs.push(parts);
        }
        Ok(())
    }

    /// Of a partition, or of the keys between two cuts.
    fn reader(&self, job: &Job, plan: &Arc<Plan>, (i, n): (u64, u64), turn: usize) -> Reader {
        let with = (plan.clone(), Arc::new(self.pool.map.clone()));
        let settings = self.weather.settings.clone();
        let reader = match &job.cuts {
            None => {
                let by = READS.get(job.outputs.len()).copied().flatten().unwrap_or(CutBy::Records);
                Reader::of_partition(with, settings, (i, n, by))
            }
            Some(cuts) => {
                let first = i.checked_sub(1).and_then(|before| cuts.get(before as usize));
                let first = first.cloned().unwrap_or_else(|| [].as_slice().into());
                Reader::of_keys(with, settings, (first, cuts.get(i as usize).cloned()))
            }
        };
        reader.with_turn(turn)
    }

    pub(in crate::shuffle) fn reader_is_answered(
        &mut self,
        number: usize,
        partition: (u64, u64),
        event: Event,
    ) {
        let Some(mut job) = self.jobs[number].take() else { return };
        if let Some(at) = job.readings.iter().position(|reading| reading.partition == partition) {
            self.reader_acts(&mut job, at, event);
        }
        self.jobs[number] = Some(job);
    }

    fn reader_acts(&mut self, job: &mut Job, at: usize, event: Event) {
        let now = self.millis();
        let mut is_anew = false;
        let reading = &mut job.readings[at];
        for effect in reading.reader.handle(now, event) {
            match effect {
                Effect::Ask(node, number, slice) => {
                    if let Some(node) = self.node_of(&node) {
                        let delay = self.draw.around(self.weather.delay);
                        let (job, partition) = (job.number, reading.partition);
                        let asks = Happening::Ask { node, job, partition, number, slice };
                        self.after(delay, asks);
                    }
                }
                Effect::Seek(node, number, seek) => {
                    if let Some(node) = self.node_of(&node) {
                        let delay = self.draw.around(self.weather.delay);
                        let (job, partition) = (job.number, reading.partition);
                        self.after(delay, Happening::Seek { node, job, partition, number, seek });
                    }
                }
                Effect::Records(records) => reading.got.extend(records.placed()),
                Effect::Found(..) | Effect::Done => {}
                // It is read anew; when nothing is wrong any more it must come to an end.
                Effect::Failed(NotRead::NoHolder(..)) | Effect::Failed(NotRead::Over(_)) => {
                    self.outcome.reads_failed += 1;
                    is_anew = true;
                }
            }
        }
        if is_anew && let Some(plan) = job.plan.clone() {
            if self.is_lost(&plan) {
                self.outcome.lost_sealed += 1;
                job.readings.clear();
                job.outputs.clear();
                job.phase = Phase::Deleting;
                return;
            }
            let partition = job.readings[at].partition;
            let reader = self.reader(job, &plan, partition, at);
            job.readings[at] = Reading { reader, partition, got: Vec::new() };
        }
    }

    /// Whether the shuffle was in memory, and R machines have lost something that its plan needs.
    fn is_lost(&self, plan: &Plan) -> bool {
        let is_needed = |key: &BatchKey| {
            let of_slot = plan.needed.get(&key.stream.slot);
            let upto = of_slot.and_then(|needed| needed.get(&key.stream.writer));
            upto.is_some_and(|upto| key.number <= *upto)
        };
        self.oracle.is_lost(plan.shuffle, (&self.nodes[..], self.weather.replicas), is_needed)
    }

    fn has_read(&mut self, job: &mut Job, plan: &Arc<Plan>) -> Result<(), String> {
        let partitions: BTreeSet<u32> = (0..job.partitions).collect();
        for (by, parts) in READS.into_iter().zip(&job.outputs) {
            self.outcome.reads += 1;
            self.outcome.records += parts.iter().map(|part| part.len() as u64).sum::<u64>();
            self.oracle.read(plan, &partitions, parts, (by, job.terms.combine))?;
        }
        job.outputs.clear();
        job.phase = if job.deletes { Phase::Deleting } else { Phase::Done };
        if job.phase == Phase::Done {
            self.oracle.ended(job.shuffle);
        }
        Ok(())
    }
}
