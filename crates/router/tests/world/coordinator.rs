//! A coordinator that knows one keyspace and pushes it, by the rules of `maps.proto`.

use super::{LONG, Maps};
use partage_core::base::id::{Generation, ShardId};
use partage_core::keyspace::map::MapDiff;
use partage_wire::map::{MapEvent, MapNews, Watch, in_parts};
use partage_wire::proto;
use partage_wire::proto::maps_server::{self, MapsServer};
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status};

type Out = mpsc::Sender<Result<proto::MapEvent, Status>>;

struct State {
    maps: Maps,
    streams: Vec<Out>,
    watches: Vec<Watch>,
}

/// It runs until it is dropped, or stopped.
pub struct Coordinator {
    pub address: String,
    state: Arc<Mutex<State>>,
    stop: Option<oneshot::Sender<()>>,
}

struct Door(Arc<Mutex<State>>);

fn event(maps: &Maps, diff: &MapDiff, resync: bool) -> MapEvent {
    let brief = resync.then(|| maps.brief(diff.to));
    let news = MapNews::Changed { brief, resync, diff: Box::new(diff.clone()) };
    MapEvent { news, nodes: maps.nodes.clone(), forgotten: vec![] }
}

#[tonic::async_trait]
impl maps_server::Maps for Door {
    type WatchStream = ReceiverStream<Result<proto::MapEvent, Status>>;

    async fn watch(
        &self,
        request: Request<proto::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let watch = Watch::try_from(request.into_inner()).unwrap();
        let (out, events) = mpsc::channel(1_000);
        let mut state = self.0.lock().unwrap();
        let maps = &state.maps;
        let known = watch.known.get(maps.map.keyspace()).copied();
        let first = known.and_then(|known| maps.diffs.iter().position(|diff| diff.from == known));
        let events_now = match (known, first) {
            (Some(known), _) if known == maps.map.generation() => {
                vec![MapEvent { news: MapNews::Nothing, nodes: maps.nodes.clone(), forgotten: vec![] }]
            }
            (_, Some(first)) => maps.diffs[first..].iter().map(|diff| event(maps, diff, false)).collect(),
            (_, None) => vec![event(maps, &maps.map.whole(), true)],
        };
        let everything = MapEvent { news: MapNews::Current(ShardId(1)), nodes: vec![], forgotten: vec![] };
        for part in events_now.iter().chain([&everything]).flat_map(in_parts) {
            out.try_send(Ok(part)).unwrap();
        }
        state.watches.push(watch);
        state.streams.push(out);
        Ok(Response::new(ReceiverStream::new(events)))
    }
}

impl Coordinator {
    pub async fn start(maps: Maps) -> Coordinator {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(Mutex::new(State { maps, streams: vec![], watches: vec![] }));
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tonic::transport::Server::builder().add_service(MapsServer::new(Door(state.clone())));
        tokio::spawn(server.serve_with_incoming_shutdown(TcpListenerStream::new(listener), async {
            let _ = stopped.await;
        }));
        Coordinator { address, state, stop: Some(stop) }
    }

    /// Changes the map, and pushes it to all streams.
    pub fn push(&self, change: impl FnOnce(&mut Maps)) {
        self.change(change, true);
    }

    /// Changes the map, and pushes it to no stream.
    pub fn change_silently(&self, change: impl FnOnce(&mut Maps)) {
        self.change(change, false);
    }

    fn change(&self, change: impl FnOnce(&mut Maps), tell: bool) {
        let mut state = self.state.lock().unwrap();
        let before = state.maps.diffs.len();
        change(&mut state.maps);
        let diffs = state.maps.diffs[before..].to_vec();
        for diff in diffs.iter().filter(|_| tell) {
            let event = event(&state.maps, diff, false);
            for out in &state.streams {
                for part in in_parts(&event) {
                    let _ = out.try_send(Ok(part));
                }
            }
        }
    }

    /// Ends all streams; the next one finds it still here.
    pub fn cut(&self) {
        self.state.lock().unwrap().streams.clear();
    }

    /// Ends all streams and the listener, and waits until no client can connect.
    pub async fn stop(mut self) {
        self.cut();
        drop(self.stop.take());
        for _ in 0..200 {
            if tokio::net::TcpStream::connect(&self.address).await.is_err() {
                return;
            }
            tokio::time::sleep(LONG / 1_000).await;
        }
        panic!("the coordinator does not end");
    }

    pub fn watches(&self) -> Vec<Watch> {
        self.state.lock().unwrap().watches.clone()
    }

    pub fn generation(&self) -> Generation {
        self.state.lock().unwrap().maps.map.generation()
    }
}
