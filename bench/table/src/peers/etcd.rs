//! etcd: three members, with the settings that it is shipped with, asked over gRPC.

use super::program;
use crate::Run;
use crate::cluster::NODES;
use crate::rows::{key, value};
use bench_gauge::client::{Draw, Seen};
use bench_gauge::{Durations, PATIENCE, Running, free, now, rest};
use proto::PutRequest;
use proto::kv_client::KvClient;
use std::io::{Error, Result};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};

/// What etcd's API has of it.
#[allow(clippy::allow_attributes_without_reason, missing_docs, reason = "generated code")]
mod proto {
    tonic::include_proto!("etcdserverpb");
}

/// All members of an etcd cluster.
pub struct Etcd(Vec<Running>);

impl Etcd {
    /// Starts them; none if etcd is not there.
    pub fn start(run: &Run) -> Result<Option<Etcd>> {
        let Some(program) = program("etcd", "etcd-server") else { return Ok(None) };
        let mut places = Vec::new();
        for number in 0..NODES {
            places.push((number, free()?, free()?));
        }
        let member =
            |(number, _, peer): &(usize, _, std::net::SocketAddr)| format!("m{number}=http://{peer}");
        let members = places.iter().map(member).collect::<Vec<_>>().join(",");
        let mut nodes = Vec::new();
        for (number, client, peer) in places {
            let folder = run.folder(&format!("etcd-{number}"))?;
            let mut command = launch(&program, &folder, &members);
            command.arg(format!("--name=m{number}"));
            command.arg(format!("--listen-client-urls=http://{client}"));
            command.arg(format!("--advertise-client-urls=http://{client}"));
            command.arg(format!("--listen-peer-urls=http://{peer}"));
            command.arg(format!("--initial-advertise-peer-urls=http://{peer}"));
            nodes.push(Running::spawn(&mut command, client)?);
        }
        nodes.iter_mut().try_for_each(Running::listens)?;
        let etcd = Etcd(nodes);
        // Until a leader is elected.
        let runtime = runtime()?;
        let end = now() + PATIENCE;
        while let Err(error) = runtime.block_on(etcd.put_once()) {
            if now() > end {
                return Err(error);
            }
            rest(100);
        }
        Ok(Some(etcd))
    }

    /// Seconds on a core that all members have used.
    pub fn core_seconds(&self) -> f64 {
        self.0.iter().map(Running::core_seconds).sum()
    }

    async fn channel(&self, number: usize) -> Result<Channel> {
        let at = self.0[number % self.0.len()].at;
        let endpoint = Endpoint::from_shared(format!("http://{at}")).map_err(Error::other)?;
        endpoint.tcp_nodelay(true).connect().await.map_err(Error::other)
    }

    async fn put_once(&self) -> Result<()> {
        let mut client = KvClient::new(self.channel(0).await?);
        client.put(request(&mut Draw(1), 1)).await.map_err(Error::other)?;
        Ok(())
    }

    /// Writes through so many connections, spread over the members, so many requests at a time on each.
    pub fn run(&self, connections: usize, depth: usize, keys: u64, time: Duration) -> Result<Seen> {
        runtime()?.block_on(async {
            let (answers, mut tasks) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
            let began = now();
            for number in 0..connections {
                let channel = self.channel(number).await?;
                for at in 0..depth {
                    let draw = Draw(0x1234_5678_9abc_def1 ^ ((number * depth + at) as u64) << 20);
                    tasks.spawn(put_all(KvClient::new(channel.clone()), draw, keys, Arc::clone(&answers)));
                }
            }
            let warm = (time / 4).clamp(Duration::from_millis(300), Duration::from_secs(1));
            tokio::time::sleep(warm.saturating_sub(now() - began)).await;
            let (began, before, counted) = (now(), self.core_seconds(), answers.load(Ordering::Relaxed));
            tokio::time::sleep(time).await;
            let server_seconds = self.core_seconds() - before;
            let (seconds, ended) = ((now() - began).as_secs_f64(), answers.load(Ordering::Relaxed));
            let mut latency = Durations::default();
            answers.store(STOP, Ordering::Relaxed);
            while let Some(task) = tasks.join_next().await {
                latency.append(task.map_err(Error::other)??);
            }
            Ok(Seen { answers: ended - counted, latency, server_seconds, seconds })
        })
    }
}

/// In the place of the count: the clients end.
const STOP: u64 = 1 << 62;

async fn put_all(
    mut client: KvClient<Channel>,
    mut draw: Draw,
    keys: u64,
    answers: Arc<AtomicU64>,
) -> Result<Durations> {
    let mut latency = Durations::default();
    let mut count = 0;
    while answers.load(Ordering::Relaxed) < STOP {
        let begin = now();
        client.put(request(&mut draw, keys)).await.map_err(Error::other)?;
        answers.fetch_add(1, Ordering::Relaxed);
        // The first ones are of the time that is not counted.
        count += 1;
        if count > 8 {
            latency.push(now() - begin);
        }
    }
    Ok(latency)
}

fn request(draw: &mut Draw, keys: u64) -> PutRequest {
    let number = draw.below(keys);
    PutRequest { key: key(number).to_vec().into(), value: value(number).to_vec().into() }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

fn launch(program: &Path, folder: &Path, members: &str) -> Command {
    let mut command = Command::new(program);
    command.arg(format!("--data-dir={}", folder.join("data").display()));
    command.arg(format!("--initial-cluster={members}"));
    command.args(["--logger=zap", "--log-level=warn"]);
    command
}
