//! `coordinator.toml`.

use super::{ConfigError, DoorFile};
use partage_core::base::settings::Settings;
use serde::Deserialize;
use std::path::PathBuf;

/// The file. What is absent has the default of [`Settings`] or of the command line.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CoordinatorFile {
    /// `host:port` to listen on.
    pub listen: Option<String>,
    /// `host:port` where others reach it; absent = `listen`.
    pub address: Option<String>,
    /// Whether it may listen on an address that other machines can reach, although there is no authentication.
    pub insecure: Option<bool>,
    /// Which clients may connect, and what they may cost.
    pub door: DoorFile,
    /// Its name among the coordinators; absent = its address.
    pub id: Option<String>,
    /// Where the state is kept.
    pub data_dir: Option<PathBuf>,
    /// The backend that several coordinators share; absent = none, the state is in `data_dir`.
    pub coordination: Option<CoordinationFile>,
    /// See [`Settings::heartbeat_ms`].
    pub heartbeat_ms: Option<u64>,
    /// See [`Settings::lease_ms`].
    pub lease_ms: Option<u64>,
    /// See [`Settings::dead_after_ms`].
    pub dead_after_ms: Option<u64>,
    /// See [`Settings::check_back_ms`].
    pub check_back_ms: Option<u64>,
    /// See [`Settings::failed_checks`].
    pub failed_checks: Option<u32>,
    /// See [`Settings::settle_ms`].
    pub settle_ms: Option<u64>,
    /// See [`Settings::rebalance_ms`].
    pub rebalance_ms: Option<u64>,
    /// See [`Settings::brake_window_ms`].
    pub brake_window_ms: Option<u64>,
    /// See [`Settings::brake_share`].
    pub brake_share: Option<f64>,
    /// See [`Settings::brake_setbacks`].
    pub brake_setbacks: Option<u32>,
    /// See [`Settings::poison_deaths`].
    pub poison_deaths: Option<u32>,
    /// See [`Settings::poison_window_ms`].
    pub poison_window_ms: Option<u64>,
    /// See [`Settings::load_attempts`].
    pub load_attempts: Option<u32>,
    /// See [`Settings::handover_ms`].
    pub handover_ms: Option<u64>,
    /// See [`Settings::transfer_ms`].
    pub transfer_ms: Option<u64>,
    /// See [`Settings::plans_kept`].
    pub plans_kept: Option<usize>,
    /// See [`Settings::events_kept`].
    pub events_kept: Option<usize>,
    /// See [`Settings::events_kept_ms`].
    pub events_kept_ms: Option<u64>,
}

/// How to reach the backend. Secrets are in files of their own.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CoordinationFile {
    /// `etcd://host:port,host:port/root` or the like.
    pub address: Option<String>,
    /// A file with the password.
    pub password_file: Option<PathBuf>,
    /// The CA that signs the backend's certificates, PEM; present = TLS.
    pub ca: Option<PathBuf>,
    /// Our own certificate, PEM.
    pub certificate: Option<PathBuf>,
    /// The private key of `certificate`, PEM.
    pub key: Option<PathBuf>,
    /// How long the others wait for a leader that was killed.
    pub session_ms: Option<u64>,
}

impl CoordinatorFile {
    /// The settings, checked; what is absent is as in `default`.
    pub fn settings(&self, file: &str, default: &Settings) -> Result<Settings, ConfigError> {
        let settings = Settings {
            heartbeat_ms: self.heartbeat_ms.unwrap_or(default.heartbeat_ms),
            lease_ms: self.lease_ms.unwrap_or(default.lease_ms),
            dead_after_ms: self.dead_after_ms.unwrap_or(default.dead_after_ms),
            check_back_ms: self.check_back_ms.unwrap_or(default.check_back_ms),
            failed_checks: self.failed_checks.unwrap_or(default.failed_checks),
            settle_ms: self.settle_ms.unwrap_or(default.settle_ms),
            rebalance_ms: self.rebalance_ms.unwrap_or(default.rebalance_ms),
            brake_window_ms: self.brake_window_ms.unwrap_or(default.brake_window_ms),
            brake_share: self.brake_share.unwrap_or(default.brake_share),
            brake_setbacks: self.brake_setbacks.unwrap_or(default.brake_setbacks),
            poison_deaths: self.poison_deaths.unwrap_or(default.poison_deaths),
            poison_window_ms: self.poison_window_ms.unwrap_or(default.poison_window_ms),
            load_attempts: self.load_attempts.unwrap_or(default.load_attempts),
            handover_ms: self.handover_ms.unwrap_or(default.handover_ms),
            transfer_ms: self.transfer_ms.unwrap_or(default.transfer_ms),
            plans_kept: self.plans_kept.unwrap_or(default.plans_kept),
            events_kept: self.events_kept.unwrap_or(default.events_kept),
            events_kept_ms: self.events_kept_ms.unwrap_or(default.events_kept_ms),
        };
        let value = |error: partage_core::base::settings::SettingsError| ConfigError::Value {
            file: file.to_owned(),
            what: error.to_string(),
        };
        settings.check().map_err(value)?;
        Ok(settings)
    }
}
