//! What a lessee knows of its leases.
//!
//! As local buckets are, leases are kept in a table of sets that never grows: each is one value that is read and written
//! as a whole by compare-and-set. A key for which there is no room has no lease and is decided exactly, at the endpoint.

use super::{LEASE_LIFE, LEASE_USE, LeaseCall};
use crate::key::Digest;
use crate::limit::outstanding::{Outstanding, generation};
use crate::slots::{HOLD_LIFE, Malformed};
use crate::units::Micros;
use crate::wire::LeaseAnswer;

/// Keys in a set.
const WAYS: usize = 4;

/// How far ahead units are asked for, at the rate at which they were used: half of a lease's life.
const AHEAD: u64 = LEASE_LIFE.count() / 2;

/// The shortest time from which a rate is told.
const SHORTEST: u64 = LEASE_LIFE.count() / 10;

/// A lease is renewed when it has less than this part of its time left, or of the units that it began with.
const PART: u64 = 4;

/// A denial is kept for so long at the most: a lease that comes back can bring units sooner than it says.
const DENIED_FOR: Micros = Micros::from_millis(250);

/// When a lease was refused, or a call about it failed, none is asked for before this has passed.
const QUIET: Micros = Micros::from_millis(250);

/// A key of which nothing has been used for so long gives back what it has.
const IDLE: Micros = Micros::from_millis(500);

/// One set, as read at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseSet {
    entries: Vec<Entry>,
    /// Units of leases that died before they were spent, since they were last [taken](Self::take_expired).
    expired: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entry {
    key: Digest,
    /// Whom the lender knows it by: for all workers that share it, the one that made the entry.
    lessee: Digest,
    /// What can be spent.
    units: u64,
    /// What was taken for requests that are not decided yet, in generations of [`HOLD_LIFE`].
    held: Outstanding,
    held_at: Micros,
    /// From then on the lease is dead.
    dead_at: Micros,
    /// What the lease began with.
    began_with: u64,
    /// The last call about it, and the last whose answer was used.
    seq: u64,
    acked: u64,
    /// When that call was made, while it is out; zero when none is.
    asked_at: Micros,
    /// No call is made before.
    quiet_until: Micros,
    /// Since then so many requests have wanted so many units.
    since: Micros,
    requests: u64,
    wanted: u64,
    /// When it was last used.
    used_at: Micros,
    /// Until then whoever wants this much or more is denied, and told to come back at that time.
    denied_until: Micros,
    denied_cost: u64,
    back_at: Micros,
    /// What the bucket itself had left when it was last asked.
    left: u64,
}

/// What a set says to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The units are there; so many are left without them, here and as far as is known in the bucket.
    There {
        /// Whole units.
        left: u64,
    },
    /// They are not here: the endpoint decides.
    Missing,
    /// The endpoint has just said so, and nothing has changed since.
    Denied {
        /// How long to wait yet.
        wait: Micros,
        /// Whole units.
        left: u64,
    },
}

/// Units that were taken from a lease, to be settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseHold {
    generation: u64,
}

/// How an answer changes what is known of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseNews {
    /// What the bucket itself has left; `None` when there was no answer.
    pub left: Option<u64>,
    /// For how long it denies so many units.
    pub denied: Option<(u64, Micros)>,
    /// The call that was made, and what it brought.
    pub call: Option<(LeaseCall, Option<LeaseAnswer>)>,
}

impl LeaseSet {
    /// Reads a set.
    ///
    /// # Errors
    /// When the bytes are not a set that [`encode`](Self::encode) wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (entries, rest) = bytes.as_chunks::<ENTRY_LEN>();
        if !rest.is_empty() || entries.len() > WAYS {
            return Err(Malformed);
        }
        let entries = entries.iter().map(Entry::decode).collect::<Option<_>>().ok_or(Malformed)?;
        Ok(Self { entries, expired: 0 })
    }

    /// The bytes to store.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.entries.len().saturating_mul(ENTRY_LEN));
        for entry in &self.entries {
            entry.encode(&mut bytes);
        }
        bytes
    }

    /// What there is for `cost` units of this key.
    #[must_use]
    pub fn find(&self, key: Digest, cost: u64, now: Micros) -> Found {
        let Some(entry) = self.entries.iter().find(|entry| entry.key == key) else { return Found::Missing };
        let there = entry.spendable(now);
        if cost <= there {
            return Found::There { left: there.saturating_sub(cost).saturating_add(entry.left) };
        }
        if entry.denied_until > now && cost >= entry.denied_cost {
            return Found::Denied { wait: entry.back_at.since(now), left: there.saturating_add(entry.left) };
        }
        Found::Missing
    }

    /// Takes what [`find`](Self::find) found to be there: for good, or to be settled. Gives the call that renews the
    /// lease in the background when it is due.
    pub fn take(&mut self, key: Digest, cost: u64, hold: bool, now: Micros) -> (Option<LeaseHold>, Option<LeaseCall>) {
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.key == key) else { return (None, None) };
        self.expired = self.expired.saturating_add(entry.revive(now));
        entry.note(cost, now);
        entry.units = entry.units.saturating_sub(cost);
        let held = hold.then(|| {
            entry.held.take(cost);
            LeaseHold { generation: generation(now, HOLD_LIFE) }
        });
        // With little time left it is renewed, and what is too much goes back. With few units left it gets more.
        let part = |whole: u64| whole.checked_div(PART).unwrap_or(0);
        let ends = entry.dead_at.since(now).count() < part(LEASE_USE.count());
        let is_due = ends || entry.units < part(entry.began_with);
        let surplus = if ends { entry.units.saturating_sub(entry.ahead(now)) } else { 0 };
        (held, if is_due { entry.ask(surplus, now) } else { None })
    }

    /// Notes a request whose units are missing here, once. Gives the call that asks for a lease beside it, when one is
    /// due: what is here goes back with it, so that what is there together can be enough.
    pub fn miss(&mut self, key: Digest, cost: u64, is_noted: bool, lessee: Digest, now: Micros) -> Option<LeaseCall> {
        let index = self.place(key, lessee, now)?;
        let entry = self.entries.get_mut(index)?;
        self.expired = self.expired.saturating_add(entry.revive(now));
        if !is_noted {
            entry.note(cost, now);
        }
        entry.ask(entry.units, now)
    }

    /// What was taken is spent, or comes back.
    pub fn settle(&mut self, key: Digest, hold: LeaseHold, cost: u64, back: bool, now: Micros) {
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.key == key) else { return };
        self.expired = self.expired.saturating_add(entry.revive(now));
        let released = entry.held.release(hold.generation, cost, generation(now, HOLD_LIFE));
        if back {
            entry.units = entry.units.saturating_add(released);
        }
    }

    /// What the endpoint has said.
    pub fn told(&mut self, key: Digest, news: &LeaseNews, now: Micros) {
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.key == key) else { return };
        self.expired = self.expired.saturating_add(entry.revive(now));
        entry.left = news.left.unwrap_or(entry.left);
        if let Some((cost, wait)) = news.denied {
            entry.denied_cost = cost;
            entry.back_at = now.plus(wait);
            entry.denied_until = now.plus(wait.min(DENIED_FOR));
        }
        if let Some((call, answer)) = news.call
            && call.seq == entry.seq
            && entry.asked_at > Micros::ZERO
        {
            entry.answered(&call, answer, now);
        }
    }

    /// The call that gives back what nobody has used for a while.
    pub fn give_back(&mut self, key: Digest, now: Micros) -> Option<LeaseCall> {
        let entry = self.entries.iter_mut().find(|entry| entry.key == key)?;
        self.expired = self.expired.saturating_add(entry.revive(now));
        if entry.is_idle(now) && entry.units > 0 { entry.ask(entry.units, now) } else { None }
    }

    /// Whether anything of this key is lent, or may be.
    #[must_use]
    pub fn is_lent(&self, key: Digest, now: Micros) -> bool {
        self.entries.iter().any(|entry| entry.key == key && (entry.spendable(now) > 0 || entry.is_asking(now)))
    }

    /// Units of leases that have died before they were spent.
    pub const fn take_expired(&mut self) -> u64 {
        core::mem::replace(&mut self.expired, 0)
    }

    /// Where this key's entry is; a new one takes a free place.
    fn place(&mut self, key: Digest, lessee: Digest, now: Micros) -> Option<usize> {
        if let Some(place) = self.entries.iter().position(|entry| entry.key == key) {
            return Some(place);
        }
        let new = Entry { key, lessee, since: now, ..Entry::default() };
        if self.entries.len() < WAYS {
            self.entries.push(new);
            return self.entries.len().checked_sub(1);
        }
        let free = self.entries.iter().enumerate().filter(|(_, entry)| entry.is_free(now));
        let (place, _) = free.min_by_key(|(_, entry)| entry.used_at)?;
        let old = core::mem::replace(self.entries.get_mut(place)?, new);
        self.expired = self.expired.saturating_add(old.units);
        Some(place)
    }
}

impl Entry {
    fn spendable(&self, now: Micros) -> u64 {
        if self.dead_at > now { self.units } else { 0 }
    }

    const fn is_asking(&self, now: Micros) -> bool {
        // An answer that takes longer is of no use.
        self.asked_at.count() > 0 && now.since(self.asked_at).count() < LEASE_USE.count()
    }

    /// Whether another key may have the place: nothing is lent, nobody waits, and no denial is kept.
    fn is_free(&self, now: Micros) -> bool {
        self.spendable(now) == 0 && self.held.total() == 0 && !self.is_asking(now) && self.denied_until <= now
    }

    /// Brings it to now: what is dead is gone. Gives how much that was.
    fn revive(&mut self, now: Micros) -> u64 {
        let expired = if self.dead_at <= now { core::mem::take(&mut self.units) } else { 0 };
        let mut turned = generation(self.held_at, HOLD_LIFE);
        while self.held.total() > 0 && turned < generation(now, HOLD_LIFE) {
            self.held = self.held.turned();
            turned = turned.saturating_add(1);
        }
        self.held_at = now;
        if !self.is_asking(now) {
            self.asked_at = Micros::ZERO;
        }
        expired
    }

    /// One more request. What was wanted long ago says nothing about now.
    fn note(&mut self, cost: u64, now: Micros) {
        if now.since(self.since) > LEASE_LIFE {
            (self.since, self.requests, self.wanted) = (now, 0, 0);
        }
        self.requests = self.requests.saturating_add(1);
        self.wanted = self.wanted.saturating_add(cost);
        self.used_at = now;
    }

    const fn is_idle(&self, now: Micros) -> bool {
        now.since(self.used_at).count() >= IDLE.count()
    }

    /// The call that is due now, if one is. `returned` units go back with it.
    fn ask(&mut self, returned: u64, now: Micros) -> Option<LeaseCall> {
        if self.is_asking(now) || (self.quiet_until > now && returned == 0) {
            return None;
        }
        let units = self.units.saturating_sub(returned);
        let wanted = if self.quiet_until > now { 0 } else { self.ahead(now).saturating_sub(units) };
        let kept = units.saturating_add(self.held.total());
        if wanted == 0 && returned == 0 && kept == 0 {
            return None;
        }
        self.units = units;
        let seq = self.seq.saturating_add(1).max(now.count());
        // The first call of an entry knows nothing of those before, and takes them for heard.
        let acked = if self.seq == 0 { seq.saturating_sub(1) } else { self.acked };
        (self.seq, self.acked, self.asked_at) = (seq, acked, now);
        (self.since, self.requests, self.wanted) = (now, 1, self.wanted.checked_div(self.requests).unwrap_or(0));
        Some(LeaseCall { lessee: self.lessee, seq, acked, kept, returned, wanted })
    }

    /// What is going to be used for some time, if it goes on as it did. One request alone says nothing of that; and of a
    /// key that is seldom used a lease would go back, by a call of its own, before it is used.
    fn ahead(&self, now: Micros) -> u64 {
        let span = now.since(self.since).count().max(SHORTEST);
        let over = |count: u64, time: u64| count.saturating_mul(time).checked_div(span).unwrap_or(0);
        if self.requests < 2 || over(self.requests, IDLE.count()) < 2 || self.is_idle(now) {
            return 0;
        }
        over(self.wanted, AHEAD)
    }

    fn answered(&mut self, call: &LeaseCall, answer: Option<LeaseAnswer>, now: Micros) {
        let asked_at = core::mem::take(&mut self.asked_at);
        let Some(answer) = answer.filter(|answer| answer.seq == call.seq) else {
            self.quiet_until = now.plus(QUIET);
            return;
        };
        self.acked = call.seq;
        if answer.units < call.kept {
            // The lender knows nothing of what was kept.
            self.held = Outstanding::default();
        }
        self.units = self.units.saturating_add(answer.units).saturating_sub(call.kept);
        self.began_with = self.units;
        self.dead_at = asked_at.plus(LEASE_USE);
        if call.wanted > 0 && answer.units <= call.kept {
            self.quiet_until = now.plus(QUIET);
        }
    }

    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.key.as_bytes());
        bytes.extend(self.lessee.as_bytes());
        for number in [
            self.units,
            self.held.current,
            self.held.previous,
            self.held_at.count(),
            self.dead_at.count(),
            self.began_with,
            self.seq,
            self.acked,
            self.asked_at.count(),
            self.quiet_until.count(),
            self.since.count(),
            self.requests,
            self.wanted,
            self.used_at.count(),
            self.denied_until.count(),
            self.denied_cost,
            self.back_at.count(),
            self.left,
        ] {
            bytes.extend(number.to_le_bytes());
        }
    }

    fn decode(bytes: &[u8; ENTRY_LEN]) -> Option<Self> {
        let (key, rest) = bytes.split_first_chunk::<{ Digest::LEN }>()?;
        let (lessee, rest) = rest.split_first_chunk::<{ Digest::LEN }>()?;
        let (numbers, _) = rest.as_chunks::<8>();
        let mut numbers = numbers.iter().map(|number| u64::from_le_bytes(*number));
        let mut next = || numbers.next();
        Some(Self {
            key: Digest::from_bytes(*key),
            lessee: Digest::from_bytes(*lessee),
            units: next()?,
            held: Outstanding { current: next()?, previous: next()? },
            held_at: Micros::new(next()?),
            dead_at: Micros::new(next()?),
            began_with: next()?,
            seq: next()?,
            acked: next()?,
            asked_at: Micros::new(next()?),
            quiet_until: Micros::new(next()?),
            since: Micros::new(next()?),
            requests: next()?,
            wanted: next()?,
            used_at: Micros::new(next()?),
            denied_until: Micros::new(next()?),
            denied_cost: next()?,
            back_at: Micros::new(next()?),
            left: next()?,
        })
    }
}

/// One entry: key, lessee, and eighteen little-endian numbers.
const ENTRY_LEN: usize = 2 * Digest::LEN + 18 * 8;

/// Names the format of the stored bytes: another one has entries of another size.
pub const FORMAT: usize = ENTRY_LEN;
