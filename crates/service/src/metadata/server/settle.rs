//! What follows from the head: which operations count, what is dropped, fetched or removed.

use super::{
    Answer, CREATION_MS, Creating, Effect, GONE_MS, Head, MapFile, PENDING_MS, Pending, Refused, Seen,
    Server, TransactionId, Waiting,
};
use crate::metadata::SERVERS_MOST;
use partage_core::base::planted::{self, Planted};
use std::sync::Arc;

impl Server {
    /// Takes what was read of the head.
    pub(super) fn read(&mut self, number: u64, outcome: Option<Option<Seen>>, out: &mut Vec<Effect>) {
        if self.reading != Some(number) {
            return;
        }
        self.reading = None;
        match outcome {
            None => self.unread(number, out),
            Some(seen) => {
                self.seen = Some(seen);
                self.settle(out);
                self.clean(number, out);
                self.create(number, out);
                self.answer(number, out);
                self.go_on_joining(out);
            }
        }
        if std::mem::take(&mut self.again) {
            self.look(out);
        }
    }

    /// The head could not be read: refuses what waits for this read.
    fn unread(&mut self, number: u64, out: &mut Vec<Effect>) {
        let (asked, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|waiting| waiting.read <= number);
        self.waiting = later;
        out.extend(asked.into_iter().map(|w| Effect::Answer(w.request, Err(Refused::NoHead))));
        let creating = self.creating_by(number);
        out.extend(creating.into_iter().map(|c| Effect::Answer(c.request, Err(Refused::NoHead))));
    }

    /// Maps to be created that came before this read of the head began.
    fn creating_by(&mut self, number: u64) -> Vec<Creating> {
        let (now, later) =
            std::mem::take(&mut self.creating).into_iter().partition(|creating| creating.read <= number);
        self.creating = later;
        now
    }

    /// Stores the maps to be created for which the head was looked for, if there is none.
    fn create(&mut self, number: u64, out: &mut Vec<Effect>) {
        for Creating { request, map, .. } in self.creating_by(number) {
            if self.head().is_none() {
                self.store_whole(request, map, out);
            } else {
                out.push(Effect::Answer(request, Err(Refused::Superseded)));
            }
        }
    }

    /// Goes to the head's map, by what is stored here or by fetching it.
    pub(super) fn settle(&mut self, out: &mut Vec<Effect>) {
        let Some(head) = self.head().cloned() else { return };
        if !head.servers.contains(&self.me) && self.joining.is_none() {
            return;
        }
        let found = self.files.iter().find_map(|(name, file)| Some((*name, file.path(head.at)?)));
        let Some((name, path)) = found else {
            if !self.is_writing(head.at) && self.fetching.is_none() {
                self.fetch(out);
            }
            return;
        };
        if let Some(file) = self.files.get_mut(&name) {
            file.counts = true;
            if !path.is_empty() {
                let map = Arc::make_mut(&mut file.map);
                let applied = path.iter().try_for_each(|diff| map.apply(diff));
                applied.expect("a path is of operations that follow on each other, from this map on");
                out.push(Effect::Settled(name));
            }
            let past = |p: &&Pending| p.diff.to.sequence <= head.at.sequence;
            let gone: Vec<_> = file.pending.values().filter(past).map(|p| p.diff.to).collect();
            for gone in gone {
                // What counts is in the map; of the rest, and of what builds on it, nothing can count any more.
                if path.iter().any(|diff| diff.to == gone) {
                    file.pending.remove(&gone.transaction);
                } else {
                    out.extend(file.drop(gone).into_iter().map(|dropped| Effect::Drop(name, dropped)));
                }
            }
        }
        self.remove_others(Some(name), out);
    }

    /// Removes every file that counted, except `own` and the latest one ahead of the head.
    fn remove_others(&mut self, own: Option<TransactionId>, out: &mut Vec<Effect>) {
        let ahead = self.kept_ahead();
        self.remove_where(|name, file| file.counts && ![own, ahead].contains(&Some(name)), out);
    }

    /// The latest map that counted here, where the head is at an earlier one. No leader takes a head back: the keyspace
    /// was created anew, or a person has set the head back and this is the newest map that there is. It is kept for as
    /// long as one without a head.
    fn kept_ahead(&mut self) -> Option<TransactionId> {
        let at = self.head()?.at;
        let counted = self.files.iter().filter(|(_, file)| file.counts && file.is_ahead_of(at));
        let latest = counted.max_by_key(|(_, file)| file.map.generation()).map(|(name, _)| *name);
        let Some(latest) = latest else {
            self.behind = None;
            return None;
        };
        let since = *self.behind.get_or_insert(self.now);
        (self.now.since(since) < GONE_MS).then_some(latest)
    }

    fn remove_where(&mut self, is_gone: impl Fn(TransactionId, &MapFile) -> bool, out: &mut Vec<Effect>) {
        let gone = self.files.iter().filter(|(name, file)| is_gone(**name, file));
        let gone: Vec<_> = gone.map(|(name, _)| *name).collect();
        gone.into_iter().for_each(|name| self.remove(name, out));
    }

    fn fetch(&mut self, out: &mut Vec<Effect>) {
        let others = self.others();
        if others.is_empty() {
            return;
        }
        let from = others[self.attempts % others.len()].clone();
        let number = self.next();
        self.fetching = Some(number);
        out.push(Effect::Fetch(number, from));
    }

    /// Drops what can never count any more: aborted changes that no notice told it of, files of keyspaces that are
    /// not its own.
    fn clean(&mut self, number: u64, out: &mut Vec<Effect>) {
        match self.seen.clone() {
            Some(Some(seen)) => {
                self.absent = None;
                self.drop_stale(number, &seen, out);
                self.leave(&seen, out);
            }
            Some(None) => self.forget(out),
            None => {}
        }
        let now = self.now;
        let late = |file: &MapFile| planted::is(Planted::Creation) || now.since(file.since) >= CREATION_MS;
        self.remove_where(|_, file| !file.counts && file.read <= number && late(file), out);
    }

    /// There is no head: no swap that requires a version of one can come, and what counted never will again.
    fn forget(&mut self, out: &mut Vec<Effect>) {
        self.doubt = None;
        self.joining = self.joining.take().filter(|joining| joining.request.is_some());
        let now = self.now;
        let absent = *self.absent.get_or_insert(now);
        self.remove_where(|_, file| file.counts && now.since(absent.max(file.since)) >= GONE_MS, out);
    }

    /// Drops changes that have waited for long: such a swap requires a version that is not later than the head's, so
    /// when the head has been written again the swap can do nothing.
    fn drop_stale(&mut self, number: u64, seen: &Seen, out: &mut Vec<Effect>) {
        let (now, mut seals) = (self.now, false);
        // What builds on a map that the head has gone back behind may have counted.
        for (name, file) in self.files.iter_mut().filter(|(_, file)| !file.is_ahead_of(seen.head.at)) {
            let mut gone = Vec::new();
            for pending in file.pending.values_mut().filter(|pending| pending.read <= number) {
                match pending.doubt {
                    None if planted::is(Planted::Stale) && now.since(pending.since) >= PENDING_MS => {
                        gone.push(pending.diff.to);
                    }
                    Some(doubt) if seen.version > doubt => gone.push(pending.diff.to),
                    Some(_) => seals = true,
                    None if now.since(pending.since) >= PENDING_MS => {
                        pending.doubt = Some(seen.version);
                        seals = true;
                    }
                    None => {}
                }
            }
            for gone in gone {
                out.extend(file.drop(gone).into_iter().map(|dropped| Effect::Drop(*name, dropped)));
            }
        }
        if seals {
            out.push(Effect::Seal(seen.clone()));
        }
    }

    /// Removes what counted when this server is not in the list and no swap can put it there.
    fn leave(&mut self, seen: &Seen, out: &mut Vec<Effect>) {
        let asked = self.joining.as_ref().is_some_and(|joining| joining.request.is_some());
        if seen.head.servers.contains(&self.me) {
            self.doubt = None;
            self.joining = self.joining.take().filter(|_| asked);
            return;
        }
        if asked {
            return;
        }
        match self.doubt {
            Some(None) => self.doubt = Some(Some(seen.version)),
            Some(Some(doubt)) if seen.version > doubt => self.doubt = None,
            Some(Some(_)) | None => {}
        }
        if self.doubt.is_some() && !planted::is(Planted::Leave) {
            return out.push(Effect::Seal(seen.clone()));
        }
        self.joining = None;
        self.remove_others(None, out);
    }

    /// Answers requests from before this read of the head began, if the head's map is here.
    fn answer(&mut self, number: u64, out: &mut Vec<Effect>) {
        let (asked, later): (Vec<Waiting>, Vec<Waiting>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|waiting| waiting.read <= number);
        self.waiting = later;
        for waiting in asked {
            let refused = match (self.head(), self.current()) {
                (_, Some(map)) if map.generation().sequence >= waiting.sequence => {
                    let map = map.clone();
                    out.push(Effect::Answer(waiting.request, Ok(Answer::Map(map))));
                    continue;
                }
                (None, _) => Refused::NoMap,
                (Some(head), None) if !head.servers.contains(&self.me) => {
                    Refused::NotMine(head.servers.clone())
                }
                // It waits until the map is fetched, and then for another look.
                (Some(_), _) => {
                    self.waiting.push(waiting);
                    continue;
                }
            };
            out.push(Effect::Answer(waiting.request, Err(refused)));
        }
    }

    fn go_on_joining(&mut self, out: &mut Vec<Effect>) {
        let Some(request) = self.joining.as_ref().and_then(|joining| joining.request) else { return };
        let Some(Some(seen)) = self.seen.clone() else {
            self.joining = None;
            return out.push(Effect::Answer(request, Err(Refused::NoMap)));
        };
        let at = seen.head.at;
        let has = self.files.values().any(|file| file.map.generation() == at);
        if seen.head.servers.contains(&self.me) {
            if has {
                self.joining = None;
                out.push(Effect::Answer(request, Ok(Answer::Joined(at))));
            }
            return;
        }
        if seen.head.servers.len() >= SERVERS_MOST {
            self.joining = None;
            return out.push(Effect::Answer(request, Err(Refused::Full("metadata servers"))));
        }
        if has && !self.swapping {
            let mut servers = seen.head.servers.clone();
            servers.push(self.me.clone());
            servers.sort();
            self.swapping = true;
            self.doubt = Some(Some(seen.version));
            out.push(Effect::Swap(seen.version, Head { at, servers }));
        }
    }
}
