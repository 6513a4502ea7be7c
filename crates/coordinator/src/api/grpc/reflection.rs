//! Which services there are, for clients such as `grpcurl` that ask instead of reading the `.proto` files.

use partage_wire::proto;
use tonic::service::Routes;
use tonic_reflection::server::Builder;

/// What a coordinator offers to others than its own.
const SERVICES: [&str; 3] = ["partage.v1.Admin", "partage.v1.Maps", "partage.v1.Worker"];

/// The same with reflection, in both versions of it: older clients know `v1alpha` only.
pub(crate) fn with_reflection(routes: Routes) -> Routes {
    let builder = || {
        let all = Builder::configure().register_encoded_file_descriptor_set(proto::DESCRIPTORS);
        SERVICES.into_iter().fold(all, Builder::with_service_name)
    };
    match (builder().build_v1(), builder().build_v1alpha()) {
        (Ok(now), Ok(before)) => routes.add_service(now).add_service(before),
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!("without reflection, as its own descriptors cannot be read: {error}");
            routes
        }
    }
}
