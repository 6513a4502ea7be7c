//! The protocol of S3, spoken with moto, a server of others, and with one that fails on purpose.
//!
//! `./test setup` installs moto.

#![cfg(feature = "s3")]
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use partage_core::dataset::{DatasetName, VersionName};
use partage_dataset::build::{Load, Options, inspect};
use partage_dataset::format::{Columns, Format};
use partage_dataset::source::{Patience, Settings, Source, SourceError, Throttle, Trouble};

/// moto, on a port of its own. It ends with its handle.
struct Moto {
    child: Child,
    port: u16,
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[expect(clippy::disallowed_methods, reason = "where programs are is a matter of the machine")]
fn program() -> PathBuf {
    let tools = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .unwrap_or_default()
        .join("partage/tools/moto/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(tools).chain(std::env::split_paths(&path));
    let found = folders.map(|folder| folder.join("moto_server")).find(|path| path.is_file());
    found.expect("moto_server is not installed: `./test setup`")
}

impl Moto {
    fn start() -> Moto {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new(program())
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut moto = Moto { child, port };
        while moto.create_bucket().is_none() {
            assert!(moto.child.try_wait().unwrap().is_none(), "moto_server ended");
            std::thread::yield_now();
        }
        moto
    }

    fn create_bucket(&self) -> Option<()> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        let request =
            "PUT /bucket HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.starts_with("HTTP/1.1 200").then_some(())
    }

    async fn put(&self, key: &str, bytes: Vec<u8>) {
        let store = AmazonS3Builder::new()
            .with_endpoint(format!("http://127.0.0.1:{}", self.port))
            .with_allow_http(true)
            .with_bucket_name("bucket")
            .with_region("us-east-1")
            .with_access_key_id("id")
            .with_secret_access_key("secret")
            .build()
            .unwrap();
        store.put(&Path::from(key), PutPayload::from(bytes)).await.unwrap();
    }
}

fn settings() -> Settings {
    [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret"), ("PATH", "/bin")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

fn source(port: u16) -> Source {
    let url = format!("s3://bucket/data/sets?endpoint=http://127.0.0.1:{port}&region=us-east-1");
    let patience = Patience {
        connect_time: Duration::from_secs(5),
        answer_time: Duration::from_millis(300),
        retries: 1,
        retry_time: Duration::from_secs(20),
    };
    Source::open_patient(&url, &settings(), &patience).unwrap()
}

fn names() -> (DatasetName, VersionName) {
    (DatasetName::new("set").unwrap(), VersionName::new("2").unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_is_listed_and_loaded_out_of_a_bucket() {
    let moto = Moto::start();
    // A source that asks a server which is slow to begin may wait longer than the stub's guests do.
    let source = Source::open(
        &format!("s3://bucket/data/sets?endpoint=http://127.0.0.1:{}&region=us-east-1", moto.port),
        &settings(),
    )
    .unwrap();
    let line = |i: u32| format!("key-{i}\t{}\n", "value ".repeat(40));
    let file = |number: u32| (0..3_000).filter(|i| i % 3 == number).map(line).collect::<String>();
    for number in 0..3 {
        moto.put(&format!("data/sets/set/2/part-{number}"), file(number).into_bytes()).await;
    }
    for key in
        ["set/1/old", "set/2/_SUCCESS", "set/2/.hidden", "set/2/_temporary/x", "set/3/_SUCCESS", "loose"]
    {
        moto.put(&format!("data/sets/{key}"), b"x".to_vec()).await;
    }
    let (dataset, version) = names();
    assert_eq!(source.url(), "s3://bucket/data/sets");
    assert_eq!(source.datasets().await.unwrap().names, std::slice::from_ref(&dataset));
    assert_eq!(source.versions(&dataset).await.unwrap().names.len(), 3);
    assert_eq!(source.latest(&dataset, true).await.unwrap(), Some(version.clone()));
    let files = source.files(&dataset, &version).await.unwrap();
    assert_eq!(
        files.files.iter().map(|f| f.name.as_str()).collect::<Vec<_>>(),
        ["part-0", "part-1", "part-2"]
    );
    assert_eq!(source.read(&dataset, "_dataset.toml", 10).await.unwrap(), None);

    let folder = tempfile::tempdir().unwrap();
    let columns = Columns { key: Some("1".to_owned()), values: vec!["2".to_owned()], header: false };
    let mut options = Options::default();
    options.format.format = Some(Format::Tsv);
    options.format.columns = columns;
    let throttle = Throttle::new(0);
    let inspection = inspect(&source, (&dataset, &version), &files, &options, &throttle).await.unwrap();
    let load = Load {
        source,
        files,
        inspection,
        options,
        throttle,
        progress: Arc::default(),
        folder: folder.path().to_owned(),
    };
    let keys = Mutex::new(0);
    let ready = |_, reader: Arc<partage_engine::readonly::Reader>| *keys.lock().unwrap() += reader.len();
    load.run(&BTreeSet::from([0, 1, 2]), &ready).await.unwrap();
    assert_eq!(*keys.lock().unwrap(), 3_000);
    assert_eq!(load.progress.seen().bytes, load.files.bytes());
}

/// What the server that fails on purpose does about a request for the object.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// Answers with this status.
    Status(&'static str),
    /// Answers nothing.
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
    // Who has had enough of us closes, and needs no answer.
    if line.contains("list-type") {
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
        Fault::Status(status) => {
            let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            return;
        }
        Fault::Silence => {
            // Until the other side has had enough.
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
                (&fault, &error.trouble),
                (Fault::Status("403 Forbidden"), Trouble::Denied(_))
                    | (Fault::Status("404 Not Found"), Trouble::NotThere)
                    | (Fault::Status("500 Internal Server Error"), Trouble::Failing(_))
                    | (Fault::Silence, Trouble::Slow(_))
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
    assert!(matches!(error.trouble, Trouble::Unreachable(_)) && error.trouble.may_pass(), "{error}");
}
