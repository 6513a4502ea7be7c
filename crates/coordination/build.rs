//! Compiles `proto/etcd.proto` to Rust without an installed `protoc`, when that backend is asked for.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    #[cfg(feature = "etcd")]
    {
        let descriptors = protox::compile(["proto/etcd.proto"], ["proto"])?;
        tonic_prost_build::configure().build_server(false).bytes(".").compile_fds(descriptors)?;
    }
    Ok(())
}
