//! The client of shuffles: it writes records in any order from any number of processes, and reads them back sorted by key, in as
//! many equal partitions as asked for, although nodes and processes die meanwhile.
//!
//! ```text
//!  start ─► write partition 0, 1, … (again while nodes die) ─► seal ─► read 0 of n, … n − 1 of n, any number of times ─► delete
//! ```
//!
//! # An example
//!
//! Two input partitions are written at once, and read as three output partitions.
//!
//! ```no_run
//! use partage_shuffle_client::{Address, Attempt, Client, CutBy, Error, Sealed, Settings, StartOptions};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! // Several nodes, so that one may be away.
//! let nodes: [Address; 2] = ["10.0.0.1:7420".parse()?, "10.0.0.2:7420".parse()?];
//! let client = Client::connect(nodes, Settings::default()).await?;
//! let shuffle = client.start(&StartOptions { partitions: 3, ..StartOptions::default() }).await?;
//!
//! // The closure is called again, with another attempt, when a node dies or says so.
//! let write = |partition: u32| {
//!     let client = client.clone();
//!     async move {
//!         let produce = |mut attempt: Attempt| async move {
//!             for number in 0..1_000_u64 {
//!                 let number = number * 2 + u64::from(attempt.partition());
//!                 attempt.write(&number.to_be_bytes(), b"value").await?;
//!             }
//!             attempt.end().await
//!         };
//!         client.write(&shuffle, partition, produce).await
//!     }
//! };
//! let (first, second) = tokio::join!(write(0), write(1));
//! println!("{} and {} records", first?.records, second?.records);
//!
//! match client.seal(shuffle.id, [0, 1]).await? {
//!     Sealed::Whole { records, bytes } => println!("{records} records of {bytes} bytes"),
//!     Sealed::Lacks(partitions) => println!("write these, and seal again: {partitions:?}"),
//! }
//!
//! let mut reading = client.read(shuffle.id, 0, 3, CutBy::Records);
//! while let Some(records) = reading.next().await? {
//!     for (key, value) in &records {
//!         println!("{key:?} {value:?}");
//!     }
//! }
//!
//! // Or all of them, two at a time.
//! client
//!     .read_partitions(shuffle.id, (3, CutBy::Records), 2, |i, mut reading| async move {
//!         while let Some(records) = reading.next().await? {
//!             println!("partition {i} has {} more", records.count());
//!         }
//!         Ok::<(), Error>(())
//!     })
//!     .await?;
//! client.delete(shuffle.id).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Another process needs the text of the [`Shuffle`], which it parses: `let shuffle: Shuffle = text.parse()?`.
//!
//! # What holds
//!
//! 1. Of each input partition one whole attempt is read, however many were run and however often anything was sent.
//! 2. Records come by key (bytes), then by input partition, then by place in it: the same on every read, so a sort is stable.
//! 3. [`Attempt::end`] returns when the records lie on as many nodes as the pool says.
//! 4. Memory is bounded: an [`Attempt`] has two frames of [`Settings::frame_bytes`] at most, a [`Reading`] one piece. A node
//!    without room holds [`Attempt::write`] back, and a reader that is slow holds its node back.
//! 5. Each [`Error`] says whether to run the attempt again ([`Error::again`]). [`Client::write`] has done so within its retry
//!    budget when it returns one.
//!
//! | topic | where |
//! |---|---|
//! | keys of several columns, numbers, nulls, descending order | [`key`] |
//! | partitions of equal records or bytes, or between keys, and keys heavier than one | [`Client::read`], [`Client::heavy_keys`] |
//! | sums, counts, least and largest values of equal keys | [`StartOptions::combine`], [`Client::read_combined`] |
//! | records that are in memory, and not on disk yet, when they are acknowledged | [`StartOptions::durability`] |
//! | what can go wrong, and what to do | [`Error`] |
//! | waits, sizes, retries | [`Settings`] |
//!
//! # What was not done
//!
//! Each request, attempt and read has a connection alone until it is done, so that nothing waits for something else on it; then
//! the connection is kept a while for the next one ([`Settings::idle`]). The client knows the nodes that it was given, and not
//! those that join later. A read that is begun again at another node gets what it has given out once more, and skips it.

mod attempt;
mod client;
mod combined;
mod error;
pub mod key;
mod nodes;
mod reading;
mod retry;
mod settings;
mod shuffle;

pub use attempt::{Attempt, Written};
pub use client::{Client, HeavyKeys, Sealed};
pub use combined::CombinedReading;
pub use error::Error;
pub use partage_service::shuffle::combine::{BadCombine, Combine, NoNumber, TotalTooLarge};
pub use partage_service::shuffle::durability::{BadDurability, Durability};
pub use partage_service::shuffle::options::BadShuffleOptions;
pub use partage_service::shuffle::{AttemptId, Bytes, ShuffleId, Terms};
pub use partage_shuffle_wire::client::{
    Again, ArrowKind, ColumnCombine, CombinedColumn, CutBy, HeavyKey, RecordKind, Refusal, RefusalWord,
    SortColumn, Stage, Status,
};
pub use partage_shuffle_wire::records::{PackedRecords, Records, put_record};
pub use partage_shuffle_wire::transport::{Address, BadAddress, Closed, Timing};
pub use reading::Reading;
pub use settings::Settings;
pub use shuffle::{BadHandle, Shuffle, StartOptions, shuffle_id};
