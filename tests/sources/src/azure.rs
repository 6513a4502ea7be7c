//! Azurite, Microsoft's own stand-in for Azure Blob Storage, with a container.

use crate::{files_below, settings, tool};
use backends::process::Process;
use backends::{free_port, program, until};
use object_store::azure::{MicrosoftAzure, MicrosoftAzureBuilder};
use object_store::path::Path as Key;
use object_store::{ObjectStoreExt, PutPayload};
use partage_dataset::source::Settings;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// The account and key that Azurite has, as its documentation says.
const ACCOUNT: &str = "devstoreaccount1";
const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// Creates the container `box`, as nothing in Rust's library does: signed by hand would be one more thing to be wrong.
const CREATE: &str = "
const { createHmac } = require('crypto');
const [account, key, port] = process.argv.slice(1);
const date = new Date().toUTCString(), version = '2021-08-06';
const resource = `/${account}/${account}/box\\nrestype:container`;
const text = `PUT\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\nx-ms-date:${date}\\nx-ms-version:${version}\\n${resource}`;
const signature = createHmac('sha256', Buffer.from(key, 'base64')).update(text, 'utf8').digest('base64');
const headers = { 'x-ms-date': date, 'x-ms-version': version, authorization: `SharedKey ${account}:${signature}` };
fetch(`http://127.0.0.1:${port}/${account}/box?restype=container`, { method: 'PUT', headers })
    .then(async (answer) => { if (answer.status !== 201) { console.error(await answer.text()); process.exit(1); } })
    .catch((error) => { console.error(String(error)); process.exit(1); });
";

/// A server that dies with its handle.
#[derive(Debug)]
pub struct Azurite {
    port: u16,
    _process: Process,
    _folder: TempDir,
}

impl Azurite {
    /// Starts one, with an empty container named `box`.
    pub async fn start() -> Azurite {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let node = program("node", "nodejs");
        let mut command = Command::new(&node);
        command.arg(tool("azurite/node_modules/azurite/dist/src/blob/main.js"));
        command.args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string(), "--skipApiVersionCheck"]);
        command.args(["--disableTelemetry", "--location"]).arg(folder.path());
        let process = Process::start("azurite", command, &folder.path().join("log"));
        until("azurite takes a container", || async {
            let mut command = Command::new(&node);
            command.args(["-e", CREATE, ACCOUNT, KEY, &port.to_string()]);
            let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
            if output.status.success() {
                Ok(())
            } else {
                Err(String::from_utf8_lossy(&output.stderr).into_owned())
            }
        })
        .await;
        Azurite { port, _process: process, _folder: folder }
    }

    fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}/{ACCOUNT}", self.port)
    }

    /// The settings of an account that may read the source.
    pub fn settings() -> Settings {
        settings([("AZURE_STORAGE_ACCOUNT_KEY", KEY)])
    }

    /// Settings with a wrong key, which the server must refuse.
    pub fn wrong_settings() -> Settings {
        settings([("AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmc=")])
    }

    /// The URL of what begins with `prefix`.
    pub fn url(&self, prefix: &str) -> String {
        format!("az://box/{prefix}?account={ACCOUNT}&endpoint={}", self.endpoint())
    }

    fn store(&self) -> MicrosoftAzure {
        crate::have_cryptography();
        MicrosoftAzureBuilder::new()
            .with_account(ACCOUNT)
            .with_access_key(KEY)
            .with_container_name("box")
            .with_endpoint(self.endpoint())
            .with_allow_http(true)
            .build()
            .unwrap()
    }

    /// Puts all files of a folder below `prefix`.
    pub async fn put_all(&self, folder: &Path, prefix: &str) {
        let store = self.store();
        for file in files_below(folder) {
            let bytes = std::fs::read(folder.join(&file)).unwrap();
            store
                .put(&Key::parse(format!("{prefix}/{file}")).unwrap(), PutPayload::from(bytes))
                .await
                .unwrap();
        }
    }
}
