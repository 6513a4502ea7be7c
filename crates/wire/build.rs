//! Compiles `proto/` to Rust without an installed `protoc`.

use std::error::Error;
use std::path::Path;

const FILES: [&str; 9] = ["map", "node", "keyspace", "worker", "maps", "plan", "stored", "admin", "metadata"];

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new("proto");
    println!("cargo:rerun-if-changed=proto");
    let files = FILES.map(|name| root.join(format!("partage/v1/{name}.proto")));
    let descriptors = protox::compile(files, [root])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
