//! What a load takes at a time: files, and bytes a second. Both are counted; how long it takes is not asked.

use super::*;
use crate::limits::READ_BYTES;

/// Files of the bench's source that this process has open: those that are being read.
fn open_files(bench: &Bench) -> usize {
    let source = bench.folder.path().join("source").canonicalize().unwrap();
    let open = fs::read_dir("/proc/self/fd").unwrap();
    // One that was closed meanwhile is not open.
    open.filter(|file| fs::read_link(file.as_ref().unwrap().path()).is_ok_and(|to| to.starts_with(&source)))
        .count()
}

/// Files of more than two pieces each, of one partition each or mixed.
fn large(bench: &Bench, files: u32, is_mixed: bool) {
    let filler = "x".repeat(1_000);
    let count = files * 2 * (READ_BYTES as u32) / 900;
    let mut dealt = if is_mixed { Vec::new() } else { dealt(Partitioner::JavaBytes, files, count) };
    if is_mixed {
        let all: Vec<_> = (0..count).map(pair).collect();
        dealt = all.chunks(count.div_ceil(files) as usize).map(<[_]>::to_vec).collect();
    }
    dealt.iter_mut().flatten().for_each(|(_, value)| value.push_str(&filler));
    bench.files(&dealt);
}

#[tokio::test]
async fn s19_no_more_files_are_read_at_once_than_is_said_and_bytes_are_those_of_one_throttle() {
    for (is_mixed, at_once) in [(false, 1), (false, 3), (true, 1), (true, 3)] {
        let mut bench = Bench::new();
        bench.options.at_once = at_once;
        large(&bench, 6, is_mixed);
        let load = bench.load().await.unwrap();
        assert_eq!(load.inspection.whole.is_empty(), is_mixed);
        // Whoever comes first gets a piece, and after it for days nobody gets another.
        let slow = Load { throttle: Throttle::new(1), ..load };
        let wanted = (0..6).collect();
        let mut most = 0;
        let looking = async {
            for _ in 0..100 {
                most = most.max(open_files(&bench));
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            while most < at_once || slow.progress.snapshot().bytes == 0 {
                most = most.max(open_files(&bench));
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::select! {
            done = slow.run(&wanted, &|_, _| {}) => panic!("{done:?}"),
            () = looking => {}
        }
        assert_eq!(most, at_once, "mixed: {is_mixed}");
        let bytes = slow.progress.snapshot().bytes;
        assert!(bytes <= READ_BYTES as u64, "{bytes} bytes");
    }
}
