//! What is stored: changes and maps that may count, from the request to the disk.

use super::{
    Answer, Creating, Effect, MAP_FILES, MapFile, PENDING, Pending, Refused, Request, Server, TransactionId,
    Write,
};
use partage_core::base::id::Generation;
use partage_core::keyspace::map::{MapDiff, ShardMap};
use std::sync::Arc;

impl Server {
    pub(super) fn store(&mut self, request: Request, diff: Arc<MapDiff>, out: &mut Vec<Effect>) {
        let refuse = |why| Effect::Answer(request, Err(why));
        for write in self.writes.values_mut() {
            if let Write::Operation { diff: other, requests, .. } = write
                && other.to == diff.to
            {
                return requests.push(request);
            }
        }
        if self.has(diff.to) {
            // The client that asks again has not given up: the change's wait begins anew.
            let (now, read) = (self.now, self.next_read());
            let files = self.files.values_mut();
            for pending in files.filter_map(|file| file.pending.get_mut(&diff.to.transaction)) {
                *pending = Pending::new(pending.diff.clone(), now, read);
            }
            return out.push(Effect::Answer(request, Ok(Answer::Stored)));
        }
        let Some((name, file)) = self.files.iter().find(|(_, file)| file.reaches(diff.from)) else {
            let later = self.current().is_some_and(|map| map.generation().sequence >= diff.to.sequence);
            out.push(refuse(if later { Refused::Superseded } else { Refused::Behind }));
            return self.look(out);
        };
        // Not above what counts: it can never count.
        if file.map.generation().sequence >= diff.to.sequence {
            return out.push(refuse(Refused::Superseded));
        }
        if self.pending() + self.writes.len() >= PENDING {
            return out.push(refuse(Refused::Full("changes")));
        }
        let (file, number) = (*name, self.next());
        out.push(Effect::Append(number, file, diff.clone()));
        self.writes.insert(number, Write::Operation { file, diff, requests: vec![request] });
    }

    pub(super) fn store_whole(&mut self, request: Request, map: Arc<ShardMap>, out: &mut Vec<Effect>) {
        for write in self.writes.values_mut() {
            if let Write::MapFile { map: other, requests, .. } = write
                && other.generation() == map.generation()
            {
                return requests.push(request);
            }
        }
        if self.has(map.generation()) {
            return out.push(Effect::Answer(request, Ok(Answer::Stored)));
        }
        if self.files.len() + self.writes.len() + self.creating.len() >= MAP_FILES {
            return out.push(Effect::Answer(request, Err(Refused::Full("maps to be created"))));
        }
        if let Some(Some(_)) = &self.seen {
            // There was a head, which may have been deleted.
            let read = self.next_read();
            self.creating.push(Creating { request, map, read });
            return self.look(out);
        }
        self.begin(map, false, vec![request], out);
    }

    pub(super) fn begin(
        &mut self,
        map: Arc<ShardMap>,
        fetched: bool,
        requests: Vec<Request>,
        out: &mut Vec<Effect>,
    ) {
        let number = self.next();
        out.push(Effect::Begin(number, map.clone()));
        self.writes.insert(number, Write::MapFile { map, fetched, requests });
    }

    /// Drops a change that can never count, and all that builds on it.
    pub(super) fn abort(&mut self, aborted: Generation, out: &mut Vec<Effect>) {
        if self.writes.values().any(|write| write.leads_to() == aborted) {
            self.aborted.insert(aborted.transaction);
        }
        if self.files.get(&aborted.transaction).is_some_and(|file| file.is_only(aborted)) {
            self.remove(aborted.transaction, out);
        }
        let is_aborted = |creating: &mut Creating| creating.map.generation() == aborted;
        let refused = self.creating.extract_if(.., is_aborted);
        out.extend(refused.map(|creating| Effect::Answer(creating.request, Err(Refused::Superseded))));
        for (name, file) in &mut self.files {
            out.extend(file.drop(aborted).into_iter().map(|dropped| Effect::Drop(*name, dropped)));
        }
    }

    pub(super) fn written(&mut self, number: u64, outcome: Result<(), String>, out: &mut Vec<Effect>) {
        let Some(write) = self.writes.remove(&number) else { return };
        let after = self.next_read();
        let aborted = self.aborted.remove(&write.leads_to().transaction);
        let mut answer = match outcome {
            Err(why) => Err(Refused::Disk(why)),
            Ok(()) if aborted => Err(Refused::Superseded),
            Ok(()) => Ok(Answer::Stored),
        };
        let kept = answer.is_ok();
        let mut copied = None;
        let requests = match write {
            Write::MapFile { map, fetched, requests } => {
                let name = map.generation().transaction;
                copied = fetched.then_some(name);
                if kept {
                    self.files
                        .insert(name, MapFile { counts: fetched, ..MapFile::new(map, self.now, after) });
                } else if aborted {
                    out.push(Effect::Remove(name));
                }
                requests
            }
            Write::Operation { file: name, diff, requests } => {
                let to = diff.to.transaction;
                match self.files.get_mut(&name) {
                    Some(file) if kept => {
                        file.pending.insert(to, Pending::new(diff, self.now, after));
                    }
                    Some(_) if aborted => out.push(Effect::Drop(name, to)),
                    Some(_) => {}
                    // It was removed with its file.
                    None => answer = answer.and(Err(Refused::Superseded)),
                }
                requests
            }
        };
        out.extend(requests.into_iter().map(|request| Effect::Answer(request, answer.clone())));
        self.settle(out);
        if let Some(name) = copied {
            self.drop_overtaken(name, out);
        }
        if !self.waiting.is_empty() || self.joining.is_some() {
            self.look(out);
        }
    }

    /// A map that was fetched, and was not the head's any more when it was on disk, is of no use.
    fn drop_overtaken(&mut self, name: TransactionId, out: &mut Vec<Effect>) {
        let Some(head) = self.head() else { return };
        if self.files.get(&name).is_some_and(|file| !file.reaches(head.at)) {
            self.remove(name, out);
        }
    }
}
