//! The keyspace of a service's own data: the service asks a coordinator whether it is there, and creates, changes or deletes it.

use crate::limits::ADMIN_ANSWER;
use partage_core::keyspace::Keyspace;
use partage_dialer::Dialer;
use partage_wire::proto::admin_client::AdminClient;
use partage_wire::proto::command_request::Command;
use partage_wire::proto::{CommandRequest, GetKeyspaceRequest};
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// A connection to one coordinator, for a service that reads or changes its keyspace there.
#[derive(Debug)]
pub struct KeyspaceAdmin {
    coordinator: String,
    client: AdminClient<Channel>,
}

impl KeyspaceAdmin {
    /// Asks one coordinator after the other until one has answered, each for five seconds at most ([`ADMIN_ANSWER`]).
    ///
    /// # Errors
    /// No coordinator has answered: what the last one has refused it with, or that it does not answer.
    pub async fn first_answer<T, Answer>(
        coordinators: &[String],
        ask: impl Fn(KeyspaceAdmin) -> Answer,
    ) -> Result<T, String>
    where
        Answer: Future<Output = Result<T, String>>,
    {
        let mut why = "no coordinator is named".to_owned();
        for coordinator in coordinators {
            let asked = async { ask(KeyspaceAdmin::connect(coordinator).await?).await };
            match timeout(ADMIN_ANSWER, asked).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => why = error,
                Err(_) => why = format!("{coordinator} does not answer"),
            }
        }
        Err(why)
    }

    async fn connect(coordinator: &str) -> Result<KeyspaceAdmin, String> {
        let url = match coordinator.contains("://") {
            true => coordinator.to_owned(),
            false => format!("http://{coordinator}"),
        };
        let endpoint = Dialer::COMMAND.grpc(url).map_err(|error| format!("{coordinator}: {error}"))?;
        let channel = endpoint.connect().await.map_err(|error| format!("{coordinator}: {error}"))?;
        Ok(KeyspaceAdmin { coordinator: coordinator.to_owned(), client: AdminClient::new(channel) })
    }

    /// The keyspace of that name; none: there is none.
    ///
    /// # Errors
    /// What the coordinator says, or why it says nothing, with its address.
    pub async fn get(&mut self, name: &str) -> Result<Option<Keyspace>, String> {
        match self.client.get_keyspace(GetKeyspaceRequest { name: name.to_owned() }).await {
            Ok(found) => {
                let keyspace = Keyspace::try_from(found.into_inner());
                keyspace.map(Some).map_err(|malformed| format!("{}: {malformed}", self.coordinator))
            }
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(self.said(&status)),
        }
    }

    /// Sends a command, which the coordinator carries out. All nodes of a service send the same one: that another node was
    /// quicker to create or to delete the keyspace is no error.
    ///
    /// # Errors
    /// What the coordinator says, or why it says nothing, with its address.
    pub async fn carry_out(&mut self, command: Command) -> Result<(), String> {
        match self.client.command(CommandRequest { dry_run: false, command: Some(command) }).await {
            Ok(done) => tracing::info!("{}", done.into_inner().summary),
            Err(status) if matches!(status.code(), Code::AlreadyExists | Code::NotFound) => {}
            Err(status) => return Err(self.said(&status)),
        }
        Ok(())
    }

    fn said(&self, status: &Status) -> String {
        format!("{}: {}", self.coordinator, status.message())
    }
}
