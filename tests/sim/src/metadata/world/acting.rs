//! What requesters do about their wishes, and about what they hear.

use super::{Ask, Happening, JAM_MS, News, Reader, Route, SERVERS, World, name, number};
use crate::metadata::requester::{Doing, Wish, change, transaction};
use partage_core::base::id::Generation;
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::map::ShardMap;
use partage_core::keyspace::sharding::{PartitionKey, Sharding};
use partage_service::metadata::change::{self as changes, Change, Changing, Notice};
use partage_service::metadata::server::{Answer, Event};
use partage_service::metadata::{self, Seen};
use std::sync::Arc;

impl World {
    pub(super) fn wish(&mut self, at: usize) {
        if self.calm {
            return;
        }
        let pause = self.draw.around(self.weather.pause_ms);
        self.after(pause, Happening::Wish(at));
        if self.fails(self.weather.jams) {
            self.jam_ends = self.now + self.draw.between(JAM_MS.0, JAM_MS.1);
        }
        // A requester that is in the middle of something dies, now and then, and begins anew.
        if !matches!(self.requesters[at].doing, Doing::Idle) && !self.draw.chance(50) {
            return;
        }
        let wish = self.drawn_wish();
        if wish == Wish::Join {
            let server = self.draw.index(SERVERS);
            let life = self.requesters[at].life + 1;
            self.requesters[at].begin(Doing::Idle);
            let request = self.route(Route::Requester { at, life, server });
            return self.send(Happening::ToServer(server, Event::Join(request)));
        }
        self.requesters[at].begin(Doing::Head(wish));
        let life = self.requesters[at].life;
        self.ask(Ask::Read(Reader::Requester { at, life }));
    }

    fn drawn_wish(&mut self) -> Wish {
        let wishes = &self.weather.wishes;
        let mut drawn = self.draw.between(0, wishes.iter().map(|(_, often)| often).sum());
        let found = wishes.iter().find(|(_, often)| {
            let is_it = drawn < *often;
            drawn = drawn.saturating_sub(*often);
            is_it
        });
        found.expect("the sum is above what was drawn").0
    }

    pub(super) fn tell_requester(&mut self, at: usize, news: News) -> Result<(), String> {
        match (self.requesters[at].doing.clone(), news) {
            (Doing::Head(wish), News::Head(Some(seen))) => self.has_head(at, wish, seen),
            (Doing::Map(wish, seen), News::Answer(_, Ok(Answer::Map(map)))) => {
                self.has_map(at, &wish, seen, &map)
            }
            (Doing::Changing(changing, wanted), news) => self.go_on(at, *changing, wanted, news),
            (Doing::Head(_), News::Head(None)) | (Doing::Map(..), News::Answer(..) | News::TimeUp) => {
                self.requesters[at].begin(Doing::Idle);
                Ok(())
            }
            (Doing::Idle | Doing::Head(_) | Doing::Map(..), _) => Ok(()),
        }
    }

    fn has_head(&mut self, at: usize, wish: Wish, seen: Option<Seen>) -> Result<(), String> {
        let Some(seen) = seen else { return self.create(at) };
        if wish == Wish::Delete {
            self.ask(Ask::Swap { expected: Some(seen.version), head: None, teller: None });
            self.requesters[at].begin(Doing::Idle);
            return Ok(());
        }
        let server = self.draw.pick(&seen.head.servers).cloned().expect("no list is empty");
        let sequence = seen.head.at.sequence;
        self.requesters[at].doing = Doing::Map(wish, seen);
        self.question(at, number(&server), sequence);
        self.time_up(at);
        Ok(())
    }

    fn question(&mut self, at: usize, server: usize, sequence: u64) {
        let life = self.requesters[at].life;
        let request = self.route(Route::Requester { at, life, server });
        self.send(Happening::ToServer(server, Event::Ask(request, sequence)));
    }

    fn time_up(&mut self, at: usize) {
        let life = self.requesters[at].life;
        self.after(600, Happening::ToRequester { at, life, news: News::TimeUp });
    }

    fn create(&mut self, at: usize) -> Result<(), String> {
        let sharding = Sharding::HashRange { hash: HashFunction::Xxh3_64 };
        let mut map =
            ShardMap::empty(KeyspaceName::new("ks").expect("a name"), sharding, PartitionKey::default());
        let first = map.edit().commit(transaction(&mut self.draw));
        map.apply(&first).expect("it is the first");
        let all: Vec<_> = (0..SERVERS).map(name).collect();
        let servers = metadata::choose(&all, metadata::SERVERS, self.draw.bits());
        let map = Arc::new(map);
        self.oracle.tried(map.clone())?;
        let (changing, effects) = Changing::begin(None, map.generation(), servers);
        self.requesters[at].doing = Doing::Changing(Box::new(changing), None);
        self.act(at, effects, Some(Change::Whole(map)))
    }

    fn has_map(&mut self, at: usize, wish: &Wish, seen: Seen, map: &ShardMap) -> Result<(), String> {
        if map.generation() != seen.head.at || *wish == Wish::Know {
            self.requesters[at].begin(Doing::Idle);
            return Ok(());
        }
        if *wish == Wish::Leave {
            let mut servers = seen.head.servers.clone();
            if servers.len() < 2 {
                self.requesters[at].begin(Doing::Idle);
                return Ok(());
            }
            servers.remove(self.draw.index(servers.len()));
            let (changing, effects) = Changing::list(seen.clone(), servers);
            self.requesters[at].doing = Doing::Changing(Box::new(changing), Some(seen.head.at));
            return self.act(at, effects, None);
        }
        let diff = change(map, &mut self.draw);
        metadata::check(map, &diff).map_err(|why| format!("a legal change was refused: {why}"))?;
        let mut next = map.clone();
        next.apply(&diff).map_err(|why| why.to_string())?;
        self.oracle.tried(Arc::new(next))?;
        let (changing, effects) = Changing::begin(Some(seen), diff.to, vec![]);
        self.requesters[at].doing = Doing::Changing(Box::new(changing), None);
        self.act(at, effects, Some(Change::Operation(Arc::new(diff))))
    }

    fn go_on(
        &mut self,
        at: usize,
        mut changing: Changing,
        wanted: Option<Generation>,
        news: News,
    ) -> Result<(), String> {
        let event = match news {
            News::Answer(server, Ok(Answer::Stored)) => changes::Event::Stored(name(server), Ok(())),
            News::Answer(server, Ok(Answer::Map(map))) => {
                let has = Some(map.generation()) == wanted;
                let outcome = if has { Ok(()) } else { Err("it has another map".to_owned().into()) };
                changes::Event::Stored(name(server), outcome)
            }
            News::Answer(server, Err(why)) => changes::Event::Stored(name(server), Err(why.into())),
            News::Answer(_, Ok(Answer::Joined(_))) => return Ok(()),
            News::Swapped(swapped) => changes::Event::Swapped(swapped),
            News::Head(read) => changes::Event::Read(read),
            News::TimeUp => changes::Event::TimeUp,
        };
        let effects = changing.take(event);
        self.requesters[at].doing = Doing::Changing(Box::new(changing), wanted);
        self.act(at, effects, None)
    }

    fn act(
        &mut self,
        at: usize,
        effects: Vec<changes::Effect>,
        change: Option<Change>,
    ) -> Result<(), String> {
        let life = self.requesters[at].life;
        for effect in effects {
            match effect {
                changes::Effect::Store(servers) => {
                    for server in servers {
                        let server = number(&server);
                        match &change {
                            Some(change) => {
                                let request = self.route(Route::Requester { at, life, server });
                                let event = Event::Store(request, change.clone());
                                self.send(Happening::ToServer(server, event));
                            }
                            None => self.question(at, server, 0),
                        }
                    }
                    self.time_up(at);
                }
                changes::Effect::Swap { expected, head } => {
                    let teller = Some(Reader::Requester { at, life });
                    self.ask(Ask::Swap { expected, head: Some(head), teller });
                }
                changes::Effect::Read => self.ask(Ask::Read(Reader::Requester { at, life })),
                changes::Effect::Seal(seen) => {
                    self.ask(Ask::Swap { expected: Some(seen.version), head: Some(seen.head), teller: None });
                }
                changes::Effect::Tell(servers, notice) => {
                    for server in servers {
                        self.send(Happening::ToServer(number(&server), Event::Tell(notice)));
                    }
                    if let Notice::Committed(to) = notice {
                        self.oracle.told(to, &Ok(to));
                    }
                }
                changes::Effect::Done(outcome) => self.done(at, &outcome),
            }
        }
        Ok(())
    }

    fn done(&mut self, at: usize, outcome: &Result<Generation, changes::Failed>) {
        if let Doing::Changing(changing, None) = &self.requesters[at].doing {
            let to = changing.swap().1.at;
            self.oracle.told(to, outcome);
        }
        self.requesters[at].begin(Doing::Idle);
    }
}
