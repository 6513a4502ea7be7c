//! A bucket whose server fails on purpose: what is said of it, and what is tried again.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use partage_dataset::source::{Source, SourceError, SourceErrorKind, SourceRetryPolicy, Throttle};
use partage_service::dataset::{DatasetName, VersionName};
use sources::s3::Moto;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::time::Duration;

fn source(port: u16) -> Source {
    let url = format!("s3://bucket/data/sets?endpoint=http://127.0.0.1:{port}&region=us-east-1");
    let policy = SourceRetryPolicy {
        connect_time: Duration::from_secs(5),
        answer_time: Duration::from_millis(300),
        retries: 1,
        retry_time: Duration::from_secs(20),
    };
    Source::open_with_policy(&url, &Moto::settings(), &policy).unwrap()
}

fn names() -> (DatasetName, VersionName) {
    (DatasetName::new("set").unwrap(), VersionName::new("2").unwrap())
}

/// What the server that fails on purpose does about a request for the object.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// Answers with this status.
    Status(&'static str),
    /// The same, and about the list too.
    Closed(&'static str),
    /// Takes the request and answers nothing.
    Silence,
    /// Breaks off after so many bytes of an answer, each time.
    BreaksOff(usize),
    /// The same, and then there is another object of that name.
    Replaced(usize),
}

/// What the object holds.
fn object() -> Vec<u8> {
    (0..200_000u32).flat_map(u32::to_le_bytes).collect()
}

/// A bucket with one object, whose server has a fault.
fn faulty(fault: Fault) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let asked = Mutex::new(0);
        for stream in listener.incoming() {
            answer(stream.unwrap(), fault, &asked);
        }
    });
    port
}

fn answer(mut stream: TcpStream, fault: Fault, asked: &Mutex<usize>) {
    let (mut line, mut range) = (String::new(), 0);
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    lines.read_line(&mut line).unwrap();
    let mut head = String::new();
    while lines.read_line(&mut head).is_ok_and(|count| count > 2) {
        if let Some(from) = head.to_ascii_lowercase().strip_prefix("range: bytes=") {
            range = from.split('-').next().unwrap().parse().unwrap();
        }
        head.clear();
    }
    let object = object();
    // A client that has had enough closes the connection, and needs no answer.
    if line.contains("list-type") && !matches!(fault, Fault::Closed(_)) {
        let key = "data/sets/set/2/part-0";
        let xml = format!(
            "<?xml version=\"1.0\"?><ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated><Contents>\
             <Key>{key}</Key><Size>{}</Size><LastModified>2024-01-01T00:00:00.000Z</LastModified>\
             <ETag>&quot;one&quot;</ETag></Contents></ListBucketResult>",
            object.len()
        );
        let _ = write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{xml}",
            xml.len()
        );
        return;
    }
    *asked.lock().unwrap() += 1;
    let most = match fault {
        Fault::Status(status) | Fault::Closed(status) => {
            let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            return;
        }
        Fault::Silence => {
            // The read returns when the client has had enough.
            let _ = stream.read(&mut [0; 1]);
            return;
        }
        Fault::Replaced(_) if *asked.lock().unwrap() > 1 => {
            let _ = write!(
                stream,
                "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
            return;
        }
        Fault::BreaksOff(most) | Fault::Replaced(most) => most,
    };
    let rest = &object[range..];
    let status = if range > 0 { "206 Partial Content" } else { "200 OK" };
    let _ = write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nContent-Range: bytes {range}-{}/{}\r\nETag: \"one\"\r\n\
         Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\nConnection: close\r\n\r\n",
        rest.len(),
        object.len() - 1,
        object.len()
    );
    let _ = stream.write_all(&rest[..most.min(rest.len())]);
}

async fn downloaded(fault: Fault) -> Result<Vec<u8>, String> {
    let source = source(faulty(fault));
    let (dataset, version) = names();
    let files = source.files(&dataset, &version).await.unwrap();
    let file = &files.files[0];
    let download = source.download(file, &Throttle::new(0)).await;
    let mut download = download.map_err(|error: SourceError| {
        assert!(
            matches!(
                (&fault, &error.kind),
                (Fault::Status("403 Forbidden"), SourceErrorKind::Denied(_))
                    | (Fault::Status("404 Not Found"), SourceErrorKind::NotThere)
                    | (Fault::Status("500 Internal Server Error"), SourceErrorKind::Failing(_))
                    | (Fault::Silence, SourceErrorKind::Slow(_))
            ),
            "{fault:?}: {error:?}"
        );
        error.to_string()
    })?;
    let read = move || {
        let mut bytes = Vec::new();
        download.read_to_end(&mut bytes).map(|_| bytes).map_err(|error| error.to_string())
    };
    tokio::task::spawn_blocking(read).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_source_answers_is_told_apart_with_its_url() {
    let url = "s3://bucket/data/sets/set/2/part-0: ";
    for (fault, what) in [
        (Fault::Status("403 Forbidden"), "not allowed (403)"),
        (Fault::Status("404 Not Found"), "not there (404)"),
        (Fault::Status("500 Internal Server Error"), "the source fails: "),
        (Fault::Silence, "too slow: "),
    ] {
        let error = downloaded(fault).await.unwrap_err();
        assert!(error.starts_with(url) && error.contains(what), "{fault:?}: {error}");
    }
    let error = downloaded(Fault::Status("500 Internal Server Error")).await.unwrap_err();
    assert!(error.contains("500"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_is_refused_says_why() {
    for (status, what) in [
        ("401 Unauthorized", "does not know us (401)"),
        ("403 Forbidden", "not allowed (403)"),
        ("404 Not Found", "not there (404)"),
        ("500 Internal Server Error", "the source fails: "),
    ] {
        let error = source(faulty(Fault::Closed(status))).datasets().await.unwrap_err();
        let (said, may_pass) = (error.to_string(), error.kind.may_pass());
        assert!(said.starts_with("s3://bucket/data/sets: ") && said.contains(what), "{status}: {said}");
        assert_eq!(may_pass, status.starts_with("500"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_goes_on_where_it_broke_off() {
    // Oftener than the library itself would try again.
    assert!(downloaded(Fault::BreaksOff(90_000)).await.unwrap() == object());
    let error = downloaded(Fault::BreaksOff(0)).await.unwrap_err();
    assert!(error.starts_with("s3://bucket/data/sets/set/2/part-0: "), "{error}");
    let error = downloaded(Fault::Replaced(90_000)).await.unwrap_err();
    assert!(error.contains("replaced while it was being read"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_is_away_is_not_taken_for_an_empty_one() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = source(port).datasets().await.unwrap_err();
    assert!(matches!(error.kind, SourceErrorKind::Unreachable(_)) && error.kind.may_pass(), "{error}");
}
