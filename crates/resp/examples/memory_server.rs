//! A table in memory behind the listener, for `redis-benchmark`: what the protocol costs without replication, log and store.
//!
//! `cargo run --release -p partage-resp --example memory_server`, then
//! `redis-benchmark -p 6390 -t set,get -n 1000000 -r 100000 -P 16`.

use partage_core::keyspace::sharding::PartitionKey;
use partage_resp::memory::MemoryTable;
use partage_resp::{Listener, OneTable};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let table = Arc::new(MemoryTable::new(PartitionKey::Whole, partage_clock::unix_ms));
    let listener = Listener::new(Arc::new(OneTable(table)), partage_door::Settings::default());
    // Runs until the process is ended.
    let (_stop, stopped) = watch::channel(false);
    listener.listen(TcpListener::bind("127.0.0.1:6390").await?, stopped).await;
    Ok(())
}
