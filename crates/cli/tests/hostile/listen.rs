//! Addresses that others can reach, without anything that keeps strangers out.

use super::*;

/// What a process that must not start says, and that this was taken for wrong usage.
fn refused(arguments: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(PARTAGE);
    let child = child.args(arguments).current_dir(dir.path()).stderr(Stdio::piped()).stdout(Stdio::null());
    let mut child = child.spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let code = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status.code(),
            None if Instant::now() > until => {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("{arguments:?} listens");
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(code, Some(2), "{arguments:?}: {said}");
    said
}

#[test]
fn where_others_could_connect_it_does_not_listen_unless_that_is_said() {
    let roles: [&[&str]; 4] = [
        &["coordinator", "--listen", "0.0.0.0:0"],
        &["router", "--listen", "0.0.0.0:0"],
        &["node", "--id", "n1", "--listen", "0.0.0.0:0"],
        &["dataset", "serve", "--source", ".", "--listen", "0.0.0.0:0"],
    ];
    for role in roles {
        let said = refused(role);
        assert!(said.contains("--insecure"), "{role:?}: {said}");
    }
}

/// A dataset node that gossips at `at`, alone.
fn gossiping(at: &str) -> Vec<&str> {
    let serve = ["dataset", "serve", "--source", ".", "--listen", "127.0.0.1:0"];
    [&serve[..], &["--coordination", "gossip://127.0.0.1:1", "--gossip", at]].concat()
}

#[test]
fn gossip_that_others_can_reach_needs_a_key_unless_insecure_is_said() {
    let open = gossiping("0.0.0.0:0");
    let coordinated = ["--coordinator", "127.0.0.1:1", "--id", "d1", "--gossip", "0.0.0.0:0"];
    for arguments in [open.clone(), [&open[..6], &coordinated].concat()] {
        let said = refused(&arguments);
        assert!(said.contains("--gossip-key-file") && said.contains("--insecure"), "{arguments:?}: {said}");
    }
    let key = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(key.path(), "0123456789abcdef".repeat(4)).unwrap();
    let file = key.path().to_str().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let loopback = gossiping("127.0.0.1:0");
    for (arguments, warns) in [
        ([&open[..], &["--gossip-key-file", file]].concat(), false),
        ([&open[..], &["--insecure"]].concat(), true),
        (loopback, false),
    ] {
        let mut command = Command::new(PARTAGE);
        let running = running(command.arg("--json").args(&arguments).current_dir(dir.path()));
        let log = std::fs::read_to_string(running.log.path()).unwrap();
        let has_warned =
            log.contains("gossip at 0.0.0.0:0 believes every process that can send datagrams to it");
        assert_eq!(has_warned, warns, "{arguments:?}: {log}");
    }
}
