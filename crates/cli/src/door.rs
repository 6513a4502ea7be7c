//! The flags of every role for its door, and what the process does for it: files, rights of new files, and whether it may
//! listen where others can reach it.

use crate::output::Failure;
use clap::Args;
use partage_door::{Budget, Settings, files};
use partage_wire::config::DoorFile;
use rustix::fs::Mode;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Who may connect, how many, and how slow they may be; each process with a listener has these flags.
#[derive(Debug, Clone, Default, Args)]
pub struct DoorArgs {
    /// Listen on an address that other machines can reach, although Partage has no authentication yet: every client can
    /// read and change everything
    #[arg(long, env = "PARTAGE_INSECURE")]
    insecure: bool,
    /// Host name that the process accepts in the `Host` header, beside its own addresses; repeatable, * accepts all
    #[arg(long = "allowed-host", env = "PARTAGE_ALLOWED_HOSTS", value_delimiter = ',', value_name = "HOST")]
    allowed_hosts: Vec<String>,
    /// Web origin from which the process accepts requests, such as `https://app.example.com`; repeatable, * accepts all
    #[arg(
        long = "allowed-origin",
        env = "PARTAGE_ALLOWED_ORIGINS",
        value_delimiter = ',',
        value_name = "ORIGIN"
    )]
    allowed_origins: Vec<String>,
}

impl DoorArgs {
    /// The settings of the process's doors, of which one listens at each of `listen`.
    pub fn settled(
        self,
        listen: &[SocketAddr],
        insecure: Option<bool>,
        file: &DoorFile,
    ) -> Result<Settings, Failure> {
        let open = listen.iter().find(|at| is_open(at));
        match (open, self.is_insecure(insecure)) {
            (Some(at), false) => {
                return Err(Failure::usage(format!(
                    "{at} can be reached from other machines, and there is no authentication yet: every client that \
                     connects can read and change everything"
                ))
                .help("listen on 127.0.0.1, or say --insecure (`insecure = true`) on a network that is yours alone"));
            }
            (Some(at), true) => {
                tracing::warn!(
                    "--insecure: every client that can connect to {at} can read and change everything"
                );
            }
            (None, _) => {}
        }
        self.over(file)
    }

    /// Whether gossip may listen at `at`.
    ///
    /// # Errors
    /// When others can send to it, it has no key, and no flag says that this is meant.
    pub fn check_gossip(&self, at: SocketAddr, has_key: bool, insecure: Option<bool>) -> Result<(), Failure> {
        if has_key || !is_open(&at) {
            return Ok(());
        }
        if self.is_insecure(insecure) {
            tracing::warn!("--insecure: gossip at {at} believes every process that can send datagrams to it");
            return Ok(());
        }
        let what = format!(
            "gossip at {at} can be reached from other machines, and without a key a node believes every process that sends to it"
        );
        Err(Failure::usage(what).help(
            "give every node the same key with --gossip-key-file FILE (`gossip_key_file`): `openssl rand -hex 32 > FILE; chmod 600 \
             FILE`; or say --insecure (`insecure = true`) on a network that is yours alone",
        ))
    }

    fn is_insecure(&self, file: Option<bool>) -> bool {
        self.insecure || file.unwrap_or(false)
    }

    fn over(self, file: &DoorFile) -> Result<Settings, Failure> {
        let default = settings();
        let seconds = |said: Option<u64>, default| said.map_or(default, |s| Duration::from_secs(s.max(1)));
        let or = |told: Vec<String>, file: &Vec<String>| if told.is_empty() { file.clone() } else { told };
        Ok(Settings {
            allowed_hosts: or(self.allowed_hosts, &file.allowed_hosts),
            allowed_origins: or(self.allowed_origins, &file.allowed_origins),
            connections: file.connections,
            connections_per_address: file.connections_per_address,
            first_byte: seconds(file.first_byte_s, default.first_byte),
            head: seconds(file.head_s, default.head),
            body_bytes_s: file.body_bytes_s.unwrap_or(default.body_bytes_s),
            body_window: default.body_window,
            large_body: default.large_body,
            budget: Arc::new(budget(file)?),
            files: default.files,
        })
    }
}

/// The memory for bodies of requests that the file says.
fn budget(file: &DoorFile) -> Result<Budget, Failure> {
    let bytes = |mib: Option<u64>| mib.map(|mib| mib.saturating_mul(1 << 20));
    let all = bytes(file.bytes_in_flight_mib).unwrap_or(Budget::default().most());
    if all == 0 {
        let what = "bytes_in_flight_mib is 0: no request could have a body";
        return Err(Failure::usage(what).help("give 1 or more, or leave it out for 256"));
    }
    let for_large = Budget::new(all, None).for_large();
    let per_address = bytes(file.bytes_in_flight_per_address_mib);
    match file.bytes_in_flight_per_address_mib.filter(|mib| *mib == 0 || per_address > Some(for_large)) {
        None => Ok(Budget::new(all, per_address)),
        Some(mib) => Err(Failure::usage(format!(
            "bytes_in_flight_per_address_mib is {mib}: bodies above 64 KiB have {} MiB together",
            for_large >> 20
        ))
        .help("give 1 to that number, leave it out for half of it, or raise bytes_in_flight_mib")),
    }
}

/// Whether other machines can reach it.
fn is_open(at: &SocketAddr) -> bool {
    !at.ip().to_canonical().is_loopback()
}

/// The defaults, with as many files as the system lets the process have.
pub fn settings() -> Settings {
    Settings { files: files::for_connections(files::raise()), ..Settings::default() }
}

/// From here on, folders that the process makes are for its user alone (0700), and files too (0600): state has names, data and
/// tokens in it. Commands that write state call this before they do. Roles close folders that were there before:
/// [`partage_door::state::make_private`].
pub fn make_state_private() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_no_body_could_have_is_refused_by_the_name_of_its_field() {
        let told = |all: Option<u64>, of_one: Option<u64>| {
            let file = DoorFile {
                bytes_in_flight_mib: all,
                bytes_in_flight_per_address_mib: of_one,
                ..DoorFile::default()
            };
            budget(&file)
                .map(|budget| (budget.most() >> 20, budget.for_large() >> 20))
                .map_err(|f| f.to_string())
        };
        assert_eq!(told(None, None), Ok((256, 224)));
        assert_eq!(told(Some(64), Some(56)), Ok((64, 56)));
        for (all, of_one, says) in [
            (Some(0), None, "bytes_in_flight_mib is 0"),
            (None, Some(0), "per_address_mib is 0"),
            (Some(64), Some(57), "have 56 MiB together"),
        ] {
            assert!(told(all, of_one).unwrap_err().contains(says), "{says}");
        }
    }
}
