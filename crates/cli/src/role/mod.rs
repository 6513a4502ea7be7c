//! `partage coordinator | node | router`: one role, from a TOML file, flags or the environment. A flag wins
//! over the environment, that over the file, that over the default.

mod coordinator;
mod disk_limits;
mod node;
mod router;

pub use coordinator::CoordinatorArgs;
pub use disk_limits::{disk_limits, share};
pub use node::NodeArgs;
pub use router::RouterArgs;

use crate::output::{Failure, say};
use crate::terminal;
use partage_wire::config;
use partage_worker::LeaveError;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::io::IsTerminal;
use std::path::Path;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::field::Field;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

/// The file's configuration, or that of an empty file where none is named.
pub fn read<T: DeserializeOwned + Default>(file: Option<&Path>) -> Result<T, Failure> {
    let Some(file) = file else { return Ok(T::default()) };
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::usage(format!("cannot read the configuration {name}: {error}")))?;
    config::parse(&name, &text).map_err(Failure::usage)
}

/// The listener of a role, at the address that a flag or the file gives.
///
/// # Errors
/// The system does not let it listen there.
pub async fn bind(listen: &str, flag: &str) -> Result<TcpListener, Failure> {
    partage_door::bind(listen).await.map_err(|error| {
        Failure::failed(format!("cannot listen on {listen}: {error}"))
            .help(format!("choose another address with {flag}, or stop the process that uses this one"))
    })
}

/// The coordinators that a node or router joins: those of its flag or its variable, those of its file, the one that the commands
/// of the same shell ask, or the one of this machine.
#[expect(clippy::disallowed_methods, reason = "the command line reads the environment")]
pub fn coordinators(join: Vec<String>, file: Vec<String>) -> Vec<String> {
    let of_commands = || {
        let listed = std::env::var("PARTAGE_COORDINATOR").unwrap_or_default();
        listed.split(',').map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned).collect()
    };
    let mut said = [join, file, of_commands()].into_iter();
    said.find(|list| !list.is_empty()).unwrap_or_else(|| vec!["127.0.0.1:7400".to_owned()])
}

/// How a process ends that was asked to leave: well also without a coordinator, as no process is left that could do more.
pub fn left(left: Result<(), LeaveError>) -> Result<(), Failure> {
    match left {
        Ok(()) => Ok(()),
        Err(alone @ LeaveError::NoCoordinator { .. }) => {
            say(&format!("warning: {alone}"));
            Ok(())
        }
        Err(error) => Err(Failure::failed(error)),
    }
}

/// From now on a signal of this kind does not end the process by itself.
#[expect(clippy::disallowed_methods, reason = "the command line is where signals are caught")]
pub fn caught(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::failed(format!("cannot listen for signals: {error}")))
}

/// Ctrl-C and SIGTERM, from [`StopSignals::listen`] on: a signal that arrives between two waits is not lost. A role
/// listens before it starts anything, and so before it prints its address.
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// From now on these signals do not end the process by themselves.
    pub fn listen() -> Result<Self, Failure> {
        Ok(Self { interrupt: caught(SignalKind::interrupt())?, terminate: caught(SignalKind::terminate())? })
    }

    /// Ends when one has arrived.
    pub async fn asked_to_stop(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// What `work` ends with; none if a signal ended it.
    pub async fn unless_asked<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            ended = work => Some(ended),
            () = self.asked_to_stop() => None,
        }
    }
}

/// What a library says of each connection and of each store is said by us already, where it matters.
const CHATTY: &str = "zookeeper_client=warn,chitchat::transport=error,lsm_tree=warn";

/// One field of a log line. Its text is one line without control characters, whichever program wrote it.
fn field(writer: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> std::fmt::Result {
    let text = format!("{value:?}");
    match field.name() {
        "message" => write!(writer, "{}", terminal::line(&text)),
        name => write!(writer, "{name}={}", terminal::line(&text)),
    }
}

/// All of them, with a blank between.
fn fields() -> impl for<'writer> FormatFields<'writer> + 'static {
    debug_fn(field).delimited(" ")
}

/// Structured logs on stderr: lines for people, coloured where they read them as they come, or JSON. `RUST_LOG`
/// chooses what; without it, what is at least as grave as `level`.
pub fn log(json: bool, level: &str) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(format!("{level},{CHATTY}")));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    // A second call finds the first in place, which is as good.
    let _ = if json { builder.json().try_init() } else { builder.compact().fmt_fields(fields()).try_init() };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_log_line_is_one_line_whoever_wrote_its_texts() {
        let log = Log::default();
        let writer = log.clone();
        let builder = tracing_subscriber::fmt().compact().fmt_fields(fields()).with_ansi(false);
        let subscriber = builder.with_writer(move || writer.clone()).finish();
        let foul = "a\u{1b}[2J\nINFO all is well\u{9b}m\u{202e}";
        tracing::subscriber::with_default(subscriber, || {
            tracing::info_span!("s", by = %foul).in_scope(|| {
                tracing::warn!(why = %foul, named = foul, error = ?Some(foul), count = 7, "it said {foul}");
            });
        });
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text:?}");
        assert!(!text.trim_end().contains(|one: char| one.is_control() || one == '\u{202e}'), "{text:?}");
        let shown = r"a\u{1b}[2J\nINFO all is well\u{9b}m\u{202e}";
        assert!(text.contains(&format!("it said {shown} why={shown}")) && text.contains("count=7"), "{text}");
    }
}
