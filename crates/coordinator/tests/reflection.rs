//! A client that has no `.proto` file asks a coordinator which services it has, by reflection.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test fails where it cannot go on")]

mod door;

use door::Door;
use partage_core::base::settings::Settings;
use tokio_stream::StreamExt;
use tonic::transport::Endpoint;
use tonic_reflection::pb::{v1, v1alpha};

/// Both versions have the same messages, each under its own path.
macro_rules! told {
    ($version:ident, $door:expr, $asked:expr) => {{
        use $version::server_reflection_client::ServerReflectionClient;
        use $version::server_reflection_request::MessageRequest;
        use $version::server_reflection_response::MessageResponse;
        let channel = Endpoint::from_shared($door.url("")).unwrap().connect().await.unwrap();
        let mut client = ServerReflectionClient::new(channel);
        let asked: [MessageRequest; 2] = [
            MessageRequest::ListServices(String::new()),
            MessageRequest::FileContainingSymbol($asked.to_owned()),
        ];
        let asked = asked.map(|asked| $version::ServerReflectionRequest {
            host: String::new(),
            message_request: Some(asked),
        });
        let mut answers =
            client.server_reflection_info(tokio_stream::iter(asked)).await.unwrap().into_inner();
        let (mut services, mut files) = (Vec::new(), Vec::new());
        while let Some(answer) = answers.next().await {
            match answer.unwrap().message_response.unwrap() {
                MessageResponse::ListServicesResponse(list) => {
                    services.extend(list.service.into_iter().map(|service| service.name));
                }
                MessageResponse::FileDescriptorResponse(found) => files.extend(found.file_descriptor_proto),
                other => panic!("{other:?}"),
            }
        }
        services.sort();
        (services, files)
    }};
}

#[tokio::test]
async fn a_client_without_proto_files_finds_the_services_and_their_messages() {
    let door = Door::with(Settings::default()).await;
    let (services, files) = told!(v1, door, "partage.v1.Admin");
    let own: Vec<_> =
        services.iter().filter(|name| name.starts_with("partage.")).map(String::as_str).collect();
    assert_eq!(own, ["partage.v1.Admin", "partage.v1.Maps", "partage.v1.Worker"]);
    let text = String::from_utf8_lossy(&files.concat()).into_owned();
    assert!(text.contains("partage/v1/admin.proto") && text.contains("DrainNode"), "{text}");

    let (older, files) = told!(v1alpha, door, "partage.v1.Welcome");
    assert!(own.iter().all(|name| older.iter().any(|other| other == name)), "{older:?}");
    assert!(String::from_utf8_lossy(&files.concat()).contains("partage/v1/worker.proto"));
}
