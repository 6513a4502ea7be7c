//! `bench-up` measures how long `partage up` takes until it is ready: see the README.

use bench_gauge::{Durations, complain, core_seconds_ever_of, now, option, say};
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;

/// How long `up` may take until it prints its first line.
const SAYS_MS: f64 = 200.0;
/// How long `up` may take until it prints the addresses.
const READY_MS: f64 = 1_500.0;
/// As many as `up` opens: a coordinator, a router, the control listener, twelve nodes, and three listeners for Redis clients.
const LISTENERS: usize = 18;

fn main() -> ExitCode {
    #[expect(clippy::disallowed_methods, reason = "a program of its own, which reads its command line")]
    let words: Vec<String> = std::env::args().collect();
    if words.get(1).is_some_and(|word| word == "floor") {
        return told(floor());
    }
    match measured(option(&words, "--times", 9)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => told(Err(error)),
    }
}

fn told(ended: io::Result<()>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Ours and the floor in turn; whether the medians keep to the limits.
fn measured(times: u64) -> io::Result<bool> {
    let own = std::env::current_exe()?;
    let partage = own.with_file_name("partage");
    if !partage.exists() {
        return Err(io::Error::other(format!("{} is not there: cargo build --release", partage.display())));
    }
    let before = load();
    let mut ours = Times::default();
    let mut least = Times::default();
    for _ in 0..times {
        ours.add(&partage, &["up", "--port", "0", "--json"])?;
        least.add(&own, &["floor"])?;
    }
    say(&format!(
        "{times} times each, load average {before} before and {} after; ms, min / median / max",
        load()
    ));
    say(&format!("  up says what it does   {}; limit {SAYS_MS}", spread(&mut ours.first)));
    say(&format!("  up is ready            {}; limit {READY_MS}", spread(&mut ours.ready)));
    say(&format!("    core-milliseconds    {}", spread(&mut ours.core)));
    say(&format!("  floor is ready         {}", spread(&mut least.ready)));
    say(&format!("    core-milliseconds    {}", spread(&mut least.core)));
    Ok(ours.first.quantile_ms(0.5) <= SAYS_MS && ours.ready.quantile_ms(0.5) <= READY_MS)
}

#[derive(Default)]
struct Times {
    first: Durations,
    ready: Durations,
    core: Durations,
}

/// Ended when this is dropped.
struct Begun(Child);

impl Drop for Begun {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Times {
    fn add(&mut self, program: &PathBuf, arguments: &[&str]) -> io::Result<()> {
        let began = now();
        let mut command = Command::new(program);
        let child =
            command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut begun = Begun(child.spawn()?);
        let piped = || io::Error::other("its output is not piped");
        let said = begun.0.stderr.take().ok_or_else(piped)?;
        // Read to its end, so that what is said later blocks nothing.
        let first = std::thread::spawn(move || {
            let mut lines = BufReader::new(said).lines();
            let first = lines.next().map(|_| now());
            lines.for_each(drop);
            first
        });
        let mut line = String::new();
        BufReader::new(begun.0.stdout.take().ok_or_else(piped)?).read_line(&mut line)?;
        self.ready.push(now() - began);
        self.core.push(Duration::from_secs_f64(core_seconds_ever_of(begun.0.id())));
        serde_json::from_str::<serde_json::Value>(&line)
            .map_err(|_| io::Error::other(format!("{} was not ready: {line:?}", program.display())))?;
        drop(begun);
        if let Ok(Some(first)) = first.join() {
            self.first.push(first - began);
        }
        Ok(())
    }
}

fn spread(times: &mut Durations) -> String {
    let [min, median, max] = [0.0, 0.5, 1.0].map(|at| times.quantile_ms(at));
    format!("{min:.0} / {median:.0} / {max:.0}")
}

fn load() -> String {
    let told = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    told.split(' ').next().unwrap_or("unknown").to_owned()
}

/// Opens as many listeners as `up`, each on a runtime of its own, connects to each, and says so.
fn floor() -> io::Result<()> {
    let mut runtimes = Vec::new();
    for _ in 0..LISTENERS {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))))?;
        let address = listener.local_addr()?;
        runtime.spawn(async move { while listener.accept().await.is_ok() {} });
        runtime.block_on(TcpStream::connect(address))?;
        runtimes.push(runtime);
    }
    say("{\"floor\":\"ready\"}");
    // The process that measures the floor kills it before this time is over.
    if let Some(runtime) = runtimes.first() {
        runtime.block_on(async { tokio::time::sleep(Duration::from_secs(60)).await });
    }
    Ok(())
}
