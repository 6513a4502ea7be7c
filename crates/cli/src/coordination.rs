//! Where the coordination state is, on a command line: a backend that several coordinators share.

use crate::output::Failure;
use clap::Args;
use partage_coordination::{Backend, Secret, Target, Tls};
use partage_coordinator::SESSION_MS;
use partage_wire::config::CoordinationFile;
use std::path::PathBuf;
use std::time::Duration;

/// The backend that coordinators share, and how to reach it: from flags or the environment.
#[derive(Debug, Clone, Default, Args)]
pub struct CoordinationArgs {
    /// Address of the backend that several coordinators share, as backend://user@host:port,host:port/root; the backend
    /// is etcd, zookeeper or mysql
    #[arg(long, env = "PARTAGE_COORDINATION", value_name = "ADDRESS")]
    coordination: Option<String>,
    /// File with the password of the backend's user
    #[arg(long, env = "PARTAGE_COORDINATION_PASSWORD_FILE", value_name = "FILE")]
    coordination_password_file: Option<PathBuf>,
    /// Its password, from the environment only: a flag would show in process lists
    #[arg(long, hide = true, env = "PARTAGE_COORDINATION_PASSWORD", hide_env_values = true)]
    coordination_password: Option<String>,
    /// File with the CA certificate of the backend (PEM); enables TLS
    #[arg(long, env = "PARTAGE_COORDINATION_CA", value_name = "FILE")]
    coordination_ca: Option<PathBuf>,
    /// File with the client certificate (PEM), for a backend that asks for one
    #[arg(long, env = "PARTAGE_COORDINATION_CERTIFICATE", value_name = "FILE")]
    coordination_certificate: Option<PathBuf>,
    /// File with the key of the client certificate (PEM)
    #[arg(long, env = "PARTAGE_COORDINATION_KEY", value_name = "FILE")]
    coordination_key: Option<PathBuf>,
    /// Milliseconds after which a killed leader is replaced, or a killed dataset node counts as gone
    /// [default: 3000, for `partage dataset serve` 10000]
    #[arg(long, env = "PARTAGE_SESSION_MS", value_name = "MS")]
    session_ms: Option<u64>,
}

impl CoordinationArgs {
    /// The flags, and what the file says where a flag is not given.
    pub fn or(self, file: CoordinationFile) -> CoordinationArgs {
        CoordinationArgs {
            coordination: self.coordination.or(file.address),
            coordination_password_file: self.coordination_password_file.or(file.password_file),
            coordination_password: self.coordination_password,
            coordination_ca: self.coordination_ca.or(file.ca),
            coordination_certificate: self.coordination_certificate.or(file.certificate),
            coordination_key: self.coordination_key.or(file.key),
            session_ms: self.session_ms.or(file.session_ms),
        }
    }

    /// The backend; none when there is none.
    pub fn target(&self) -> Result<Option<Target>, Failure> {
        let target = self.any_target()?;
        if target.as_ref().is_some_and(|target| target.backend == Backend::Gossip) {
            let what =
                "gossip tells who is there and keeps nothing: coordinators need etcd, zookeeper or mysql";
            return Err(Failure::usage(what));
        }
        Ok(target)
    }

    /// The same for whom presence is enough.
    pub fn any_target(&self) -> Result<Option<Target>, Failure> {
        let Some(address) = &self.coordination else { return self.nothing_beside().map(|()| None) };
        let mut target = Target::parse(address).map_err(Failure::usage)?;
        target.password = self.password()?;
        target.tls = self.tls()?;
        Ok(Some(target))
    }

    /// Time-to-live of the coordinator's session.
    pub fn session(&self) -> Result<Duration, Failure> {
        self.session_or(Duration::from_millis(SESSION_MS))
    }

    /// Time-to-live of a session, where no flag and no file gives it.
    pub fn session_or(&self, default: Duration) -> Result<Duration, Failure> {
        match self.session_ms.unwrap_or(default.as_millis() as u64) {
            ms @ 1_000..=60_000 => Ok(Duration::from_millis(ms)),
            ms => Err(Failure::usage(format!(
                "session_ms is {ms}: give 1000 to 60000; shorter, a busy second costs the leader its lead"
            ))),
        }
    }

    fn nothing_beside(&self) -> Result<(), Failure> {
        let said = [
            ("--coordination-password-file", self.coordination_password_file.is_some()),
            ("--coordination-ca", self.coordination_ca.is_some()),
            ("--coordination-certificate", self.coordination_certificate.is_some()),
            ("--coordination-key", self.coordination_key.is_some()),
            ("--session-ms", self.session_ms.is_some()),
        ];
        match said.into_iter().find(|(_, said)| *said) {
            Some((flag, _)) => Err(Failure::usage(format!(
                "{flag} is for a backend that several coordinators share: name it with --coordination"
            ))),
            None => Ok(()),
        }
    }

    fn password(&self) -> Result<Option<Secret>, Failure> {
        let Some(file) = &self.coordination_password_file else {
            return Ok(self.coordination_password.as_ref().map(Secret::new));
        };
        let text = std::fs::read_to_string(file).map_err(|error| {
            Failure::usage(format!("cannot read the password file {}: {error}", file.display()))
        })?;
        let word = text.trim_end_matches(['\r', '\n']);
        match word.is_empty() || word.contains('\n') {
            true => {
                Err(Failure::usage(format!("the password file {} is not one line of text", file.display())))
            }
            false => Ok(Some(Secret::new(word))),
        }
    }

    fn tls(&self) -> Result<Option<Tls>, Failure> {
        let identity = match (&self.coordination_certificate, &self.coordination_key) {
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => {
                return Err(Failure::usage(
                    "a certificate and its key belong together: give --coordination-certificate and --coordination-key",
                ));
            }
        };
        match &self.coordination_ca {
            Some(ca) => Ok(Some(Tls { ca: ca.clone(), identity })),
            None if identity.is_some() => Err(Failure::usage(
                "a certificate is for TLS: name with --coordination-ca who signs the backend's certificates",
            )),
            None => Ok(None),
        }
    }
}
