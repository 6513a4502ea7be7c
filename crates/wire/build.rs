//! Compiles `proto/` to Rust without an installed `protoc`.

use std::error::Error;
use std::path::Path;

const FILES: [&str; 10] =
    ["map", "node", "keyspace", "worker", "maps", "plan", "stored", "admin", "metadata", "replication"];

/// The service of tables for clients: a package of its own, with the codec that bounds its messages.
const TABLE: &str = "partage/table/v1/table.proto";

/// The service between nodes of tables, whose messages have a checksum.
const PACKETS: &str = "partage/v1/replication.proto";

/// Fields that share the bytes of the message which they came in: what is written to tables.
const SHARED_BYTES: [&str; 4] = [
    ".partage.v1.LogEntry",
    ".partage.v1.SnapshotRow",
    ".partage.v1.SnapshotResumed",
    ".partage.v1.StoredChange",
];

#[expect(clippy::disallowed_methods, reason = "cargo says in the environment where to write")]
fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new("proto");
    println!("cargo:rerun-if-changed=proto");
    let files = FILES.map(|name| root.join(format!("partage/v1/{name}.proto")));
    let out = std::env::var("OUT_DIR")?;
    let out = Path::new(&out);
    let mut descriptors = protox::compile(&files, [root])?;
    let mut packets = descriptors.clone();
    descriptors.file.iter_mut().filter(|file| file.name() == PACKETS).for_each(|file| file.service.clear());
    packets.file.iter_mut().filter(|file| file.name() != PACKETS).for_each(|file| file.service.clear());
    let builder = tonic_prost_build::configure();
    SHARED_BYTES.into_iter().fold(builder, |builder, path| builder.bytes(path)).compile_fds(descriptors)?;
    // The service alone: its messages are those above.
    std::fs::create_dir_all(out.join("packets"))?;
    tonic_prost_build::configure()
        .codec_path("crate::replication::SummedCodec")
        .extern_path(".partage.v1", "crate::proto")
        .out_dir(out.join("packets"))
        .compile_fds(packets)?;
    // What reflection tells clients: the same without the comments.
    let table = protox::compile([root.join(TABLE)], [root])?;
    let codec = "crate::table::grpc::BoundedCodec";
    tonic_prost_build::configure().codec_path(codec).compile_fds(table)?;
    let all = files.iter().cloned().chain([root.join(TABLE)]);
    let told =
        protox::Compiler::new([root])?.include_imports(true).open_files(all)?.encode_file_descriptor_set();
    std::fs::write(out.join("partage.v1.bin"), told)?;
    Ok(())
}
