//! The memory that a builder takes, measured. Alone in its process, so that no other test is counted.
#![allow(clippy::unwrap_used, reason = "tests may stop at the first surprise")]

use partage_engine::readonly::{Builder, Compression, Layout, Options, Reader};

/// The most memory this process has had, in bytes.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
}

#[test]
fn an_input_of_forty_times_the_memory_stays_within_it() {
    let folder = tempfile::tempdir().unwrap();
    for layout in [Layout::Hashed, Layout::Ordered] {
        let path = folder.path().join(format!("{layout:?}"));
        let options =
            Options { layout, compression: Compression::Lz4, memory_bytes: 1 << 20, temporary: None };
        let before = peak_bytes();
        let mut builder = Builder::new(&path, options).unwrap();
        for n in 0..300_000_u64 {
            builder
                .add(format!("{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).as_bytes(), &[n as u8; 120])
                .unwrap();
        }
        let summary = builder.finish().unwrap();
        let grown = peak_bytes() - before;
        assert_eq!(summary.keys, 300_000);
        assert!(summary.spilled_bytes > 300_000 * 136, "{summary:?}");
        // The entries' 1 MiB, and as much again for buffers, eight runs' read-ahead and what the allocator keeps.
        assert!(grown < 6 << 20, "{layout:?}: {grown} bytes for 1 MiB");
        assert!(Reader::open(&path).unwrap().get(b"0000000000000000").unwrap().is_some());
    }
}
