//! Names and origins that operators allow.

use super::*;

fn coordinator(more: &[&str]) -> Running {
    running(Command::new(PARTAGE).args(["--json", "coordinator", "--listen", "127.0.0.1:0"]).args(more))
}

#[test]
fn a_process_answers_to_the_hosts_and_origins_that_it_was_started_with_and_to_no_others() {
    let told = ["--allowed-host", "shop.example", "--allowed-origin", "https://app.example"];
    let (open, closed) = (coordinator(&told), coordinator(&[]));
    for (headers, with, without) in [
        ("host: localhost\r\n", 200, 200),
        ("host: shop.example\r\n", 200, 421),
        ("host: other.example\r\n", 421, 421),
        ("host: localhost\r\norigin: https://app.example\r\n", 200, 403),
        ("host: localhost\r\norigin: https://other.example\r\n", 403, 403),
    ] {
        let asked = |running: &Running| ask(&running.at("coordinator"), "GET /v1/status", headers);
        assert_eq!(asked(&open), with, "{headers}");
        assert_eq!(asked(&closed), without, "{headers}");
    }
}
