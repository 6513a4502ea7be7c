//! `kv`: one node of the example service.
//!
//! ```text
//!  kv --node n1 --coordinator 127.0.0.1:7400 --listen 127.0.0.1:7501
//! ```

use clap::Parser;
use partage_kv::{Config, Node, Seed};
use partage_worker::LeaveError;
use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// One node of a sharded key-value service.
#[derive(Parser)]
#[command(name = "kv", version)]
struct Arguments {
    /// Its name in the cluster, kept across restarts.
    #[arg(long)]
    node: String,
    /// A coordinator; give several, one after the other, to have them tried in turn.
    #[arg(long, required = true)]
    coordinator: Vec<String>,
    /// The address that the node listens on, such as 127.0.0.1:7501.
    #[arg(long)]
    listen: SocketAddr,
    /// Where others reach it, if elsewhere.
    #[arg(long)]
    advertise: Option<String>,
    /// What fails with it: a data centre, a building.
    #[arg(long)]
    zone: Option<String>,
    /// JSON Lines (perhaps .gz) to begin with.
    #[arg(long)]
    seed: Option<PathBuf>,
    /// The keyspace that the seed is for.
    #[arg(long, default_value = "packages")]
    seed_keyspace: String,
    /// The field of the seed that is the key.
    #[arg(long, default_value = "package")]
    seed_key: String,
    /// A folder for the data of durable keyspaces, of this node alone.
    #[arg(long, value_name = "DIR")]
    durable: Option<PathBuf>,
    /// How long to wait, on SIGTERM, for everything to be served elsewhere.
    #[arg(long, default_value_t = 60)]
    leave_seconds: u64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let arguments = Arguments::parse();
    let mut signals = catch_signals()?;
    let seed = arguments
        .seed
        .as_deref()
        .map(|file| Seed::from_json_lines(&arguments.seed_keyspace, file, &arguments.seed_key));
    let listener = TcpListener::bind(arguments.listen).await?;
    let config = Config {
        coordinators: arguments.coordinator,
        advertise: arguments.advertise,
        zone: arguments.zone,
        seed: seed.transpose()?,
        durable: arguments.durable,
        ..Config::new(arguments.node, "", listener)
    };
    let node = tokio::select! {
        node = Node::start(config) => node?,
        () = asked_to_stop(&mut signals) => return Ok(()),
    };
    asked_to_stop(&mut signals).await;
    match node.leave(Duration::from_secs(arguments.leave_seconds)).await {
        Ok(()) => Ok(()),
        // It was asked to end, and no process is left that could do more.
        Err(alone @ LeaveError::NoCoordinator { .. }) => {
            tracing::warn!("{alone}");
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// SIGTERM and Ctrl-C: from now on they do not end the process by themselves, and none that arrives is lost.
#[expect(clippy::disallowed_methods, reason = "this is the process: it catches its signals itself")]
fn catch_signals() -> std::io::Result<[Signal; 2]> {
    Ok([signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?])
}

/// Ends when one of them has arrived.
async fn asked_to_stop([terminate, interrupt]: &mut [Signal; 2]) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
