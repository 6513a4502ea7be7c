//! The memory of all calls of Flight at a node: a share of the memory of the node.
//!
//! | of the share | for | at its bound |
//! |---|---|---|
//! | an eighth | messages of attempts, from before they are unpacked until the buffer has their rows | a client waits |
//! | an eighth | dictionaries of attempts, each for as long as its attempt | an attempt waits for some seconds, and is refused as `busy` |
//! | the rest | reads | a read waits for some seconds, and is refused as `busy` |
//!
//! What takes more than its part is taken alone.

use crate::limits::{GET_BYTES, MEMORY_WAIT, UNPACKED_BYTES};
use crate::status;
use partage_shuffle_wire::client::{Again, Refusal, RefusalWord};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tonic::Status;

/// Memory is counted in so many bytes.
const UNIT: u64 = 1 << 10;

/// A part of the memory. A copy is the same part.
#[derive(Debug, Clone)]
struct MemoryShare {
    room: Arc<Semaphore>,
    units: u32,
}

impl MemoryShare {
    fn of(bytes: u64) -> MemoryShare {
        let units = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX).max(1);
        // A semaphore counts to less than 2^61.
        MemoryShare { room: Arc::new(Semaphore::new(units as usize)), units }
    }

    /// So many bytes, or all that there are.
    fn units(&self, bytes: u64) -> u32 {
        u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).min(self.units)
    }

    /// Waits until so many are free; none: the part is gone, which it never is.
    async fn take(&self, units: u32) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.room).acquire_many_owned(units).await.ok()
    }

    async fn take_soon(&self, units: u32) -> Option<OwnedSemaphorePermit> {
        timeout(MEMORY_WAIT, self.take(units)).await.ok().flatten()
    }
}

/// Memory that is in use until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    _permit: Option<OwnedSemaphorePermit>,
}

/// The memory of all calls. A copy is the same memory.
#[derive(Debug, Clone)]
pub(crate) struct FlightMemory {
    messages: MemoryShare,
    dictionaries: MemoryShare,
    gets: MemoryShare,
}

fn busy(again: Again, what: &str) -> Status {
    let why = format!("the memory for {what} of Arrow Flight is in use: try again later, or at another node");
    status::refused(Refusal::new(RefusalWord::Busy, again, why))
}

impl FlightMemory {
    /// Divides so many bytes: an eighth for messages, one for dictionaries, the rest for reads.
    pub(crate) fn of(bytes: u64) -> FlightMemory {
        let eighth = bytes / 8;
        FlightMemory {
            messages: MemoryShare::of(eighth),
            dictionaries: MemoryShare::of(eighth),
            gets: MemoryShare::of(bytes - 2 * eighth),
        }
    }

    /// Waits for the memory of a message of an attempt. Who has it waits for the buffer alone, which goes on.
    pub(crate) async fn message(&self, bytes: u64) -> Held {
        Held { _permit: self.messages.take(self.messages.units(bytes)).await }
    }

    /// The dictionaries of a new attempt: it has none yet.
    pub(crate) fn dictionaries(&self) -> HeldDictionaries {
        HeldDictionaries { part: self.dictionaries.clone(), bytes: 0, held: None, units: 0 }
    }

    /// The memory of a read.
    pub(crate) async fn get(&self) -> Result<Held, Status> {
        let held = self.gets.take_soon(self.gets.units(GET_BYTES)).await;
        held.map(|held| Held { _permit: Some(held) }).ok_or_else(|| busy(Again::Request, "reads"))
    }
}

/// The dictionaries of one attempt: they stay until it ends.
#[derive(Debug)]
pub(crate) struct HeldDictionaries {
    part: MemoryShare,
    bytes: u64,
    held: Option<OwnedSemaphorePermit>,
    units: u32,
}

impl HeldDictionaries {
    /// One more of so many bytes. Attempts that wait for each other do so for some seconds.
    pub(crate) async fn take(&mut self, bytes: u64) -> Result<(), Status> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > UNPACKED_BYTES {
            let most = UNPACKED_BYTES >> 20;
            let why = format!(
                "the dictionaries of the stream have more than {most} MiB together: write their values as they are"
            );
            return Err(status::malformed(why));
        }
        let units = self.part.units(self.bytes);
        let more = units.saturating_sub(self.units);
        let Some(held) = self.part.take_soon(more).await else {
            return Err(busy(Again::Attempt, "dictionaries"));
        };
        match &mut self.held {
            Some(before) => before.merge(held),
            None => self.held = Some(held),
        }
        self.units = units;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use tonic::Code;

    #[tokio::test(start_paused = true)]
    async fn r1_calls_have_the_memory_that_there_is() {
        let memory = FlightMemory::of(8 * GET_BYTES);
        let mut reads = Vec::new();
        for _ in 0..6 {
            reads.push(memory.get().await.unwrap());
        }
        let refused = memory.get().await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable);
        assert!(refused.message().starts_with("busy: ") && refused.message().ends_with("[again: request]"));
        reads.pop();
        memory.get().await.unwrap();

        let message = memory.message(GET_BYTES).await;
        assert!(memory.message(1).now_or_never().is_none(), "all is in use");
        drop(message);
        // What is larger than the part is taken alone.
        let _large = memory.message(100 * GET_BYTES).await;
        assert!(memory.message(1).now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn r1_dictionaries_stay_for_an_attempt_and_are_bounded() {
        let memory = FlightMemory::of(8 << 20);
        let mut first = memory.dictionaries();
        first.take(256 << 10).await.unwrap();
        first.take(512 << 10).await.unwrap();
        let mut second = memory.dictionaries();
        second.take(256 << 10).await.unwrap();
        let refused = second.take(1 << 10).await.unwrap_err();
        assert!(refused.message().ends_with("[again: attempt]"), "{refused}");
        drop(second);
        // One that is alone has all of it, and no more than it may.
        first.take(64 << 20).await.unwrap();
        let refused = first.take(UNPACKED_BYTES).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        drop(first);
        memory.dictionaries().take(1 << 20).await.unwrap();
    }
}
