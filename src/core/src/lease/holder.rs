//! What a lessee knows of its leases.
//!
//! As local buckets are, leases are kept in a table of sets that never grows: each is one value that is read and written
//! as a whole by compare-and-set. A key for which there is no room has no lease and is decided exactly, at the endpoint.

use super::{AHEAD, LEASE_LIFE, LEASE_USE, LeaseCall};
use crate::key::Digest;
use crate::limit::TokenBucket;
use crate::limit::outstanding::{Outstanding, generation, over_period};
use crate::slots::Malformed;
use crate::units::{MAX_TOKENS, Micros, divide_product};
use crate::wire::LeaseAnswer;

/// Keys in a set.
const WAYS: usize = 4;

/// The shortest time from which a rate is told.
const SHORTEST: u64 = LEASE_LIFE.count() / 10;

/// How much of the time before a call counts for the next.
const PAST: Micros = Micros::from_millis(500);

/// A lease is renewed when it has less than this part of its time left, or of the units that it began with.
const PART: u64 = 4;

/// A denial is kept for so long at the most: a lease that comes back can bring units sooner than it says.
const DENIED_FOR: Micros = Micros::from_millis(250);

/// A denial that comes within so long of the last one's end is kept for so long itself: of a budget so scarce that its
/// lessees get no rate, a call for each of its units would be too many. Who was denied has been told to wait as long, since
/// Retry-After knows no less.
const STORM: Micros = Micros::from_secs(1);

/// When a lease was refused, or a call about it failed, none is asked for before this has passed.
const QUIET: Micros = Micros::from_millis(250);

/// A key of which nothing has been used for so long gives back what it has.
const IDLE: Micros = Micros::from_millis(500);

/// What is earned by a rate is less by one part in so many: two clocks never run at the same speed, and the lender's
/// may be the slower one by as much.
const SLOWER: u64 = 128;

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
    /// What was taken for requests that are not decided yet, in generations of [`LEASE_LIFE`]: nobody waits with it for
    /// longer than the lease [lasts](LeaseSet::lasts).
    held: Outstanding,
    held_at: Micros,
    /// From then on the lease is dead.
    dead_at: Micros,
    /// What the lease began with.
    began_with: u64,
    /// How many units it earns in each `period`; the part of the next unit that it has earned, over that; and until when
    /// all this is reckoned.
    rate: u64,
    period: u64,
    fraction: u64,
    earned_at: Micros,
    /// It earns while it has less than this.
    most: u64,
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
    /// The capacity of the limit that it was last lent by, and that limit's units in each `period`.
    capacity: u64,
    refill: u64,
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
    /// The endpoint has just said so, and nothing has changed since; or the lease will have earned them.
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
        if let Some(wait) = entry.time_to_earn(cost, now) {
            return Found::Denied { wait, left: there.saturating_add(entry.left) };
        }
        if entry.denied_until > now && cost >= entry.denied_cost {
            // Until then it would be denied here again.
            let back_at = entry.back_at.max(entry.denied_until);
            return Found::Denied { wait: back_at.since(now), left: there.saturating_add(entry.left) };
        }
        Found::Missing
    }

    /// Whether a key's lease is alive until then, if nothing is heard of it.
    #[must_use]
    pub fn lasts(&self, key: Digest, until: Micros) -> bool {
        self.entries.iter().any(|entry| entry.key == key && entry.dead_at >= until)
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
            LeaseHold { generation: generation(now, LEASE_LIFE) }
        });
        (held, entry.renew(now))
    }

    /// Notes a request that was [denied](Found::Denied): it tells of the demand all the same. Gives the call that renews
    /// the lease when it is due.
    pub fn deny(&mut self, key: Digest, cost: u64, now: Micros) -> Option<LeaseCall> {
        let entry = self.entries.iter_mut().find(|entry| entry.key == key)?;
        self.expired = self.expired.saturating_add(entry.revive(now));
        entry.note(cost, now);
        if entry.is_earning(now) { entry.renew(now) } else { None }
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
        let released = entry.held.release(hold.generation, cost, generation(now, LEASE_LIFE));
        if back {
            entry.units = entry.units.saturating_add(released);
        }
    }

    /// What the endpoint has said of a bucket of this limit.
    pub fn told(&mut self, key: Digest, news: &LeaseNews, limit: &TokenBucket, now: Micros) {
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.key == key) else { return };
        self.expired = self.expired.saturating_add(entry.revive(now));
        entry.left = news.left.unwrap_or(entry.left);
        if let Some((cost, wait)) = news.denied {
            entry.denied_cost = cost;
            entry.back_at = now.plus(wait);
            let keeps_refill = limit.refill.gains_in(STORM) <= limit.capacity.count().checked_div(2).unwrap_or(0);
            let is_storm = keeps_refill && entry.denied_until.plus(STORM) > now;
            entry.denied_until = now.plus(if is_storm { STORM } else { wait.min(DENIED_FOR) });
        }
        if let Some((call, answer)) = news.call
            && call.seq == entry.seq
            && entry.asked_at > Micros::ZERO
        {
            entry.answered(&call, answer, limit, now);
        }
    }

    /// The call that gives back what nobody has used for a while, and what was lent by this limit. By another one, which
    /// nobody may have any more, the bucket would refill at its rate.
    pub fn give_back(&mut self, key: Digest, limit: &TokenBucket, now: Micros) -> Option<LeaseCall> {
        let entry = self.entries.iter_mut().find(|entry| entry.key == key)?;
        self.expired = self.expired.saturating_add(entry.revive(now));
        let has_any = entry.units > 0 || entry.rate > 0;
        if entry.is_idle(now) && has_any && entry.is_by(limit) { entry.ask(entry.units, now) } else { None }
    }

    /// Whether anything of this key is lent by this limit, or may be.
    #[must_use]
    pub fn is_lent(&self, key: Digest, limit: &TokenBucket, now: Micros) -> bool {
        let is_lent = |entry: &Entry| entry.is_asking(now) || (entry.is_by(limit) && entry.is_lent(now));
        self.entries.iter().any(|entry| entry.key == key && is_lent(entry))
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
        if self.dead_at > now { self.earned(now).0 } else { 0 }
    }

    /// Whether its rate is at work; it rests while a call is out.
    fn is_earning(&self, now: Micros) -> bool {
        self.rate > 0 && self.dead_at > now && !self.is_asking(now)
    }

    /// The units at a time, with what is earned until then, and the part of the next one.
    fn earned(&self, now: Micros) -> (u64, u64) {
        if self.is_earning(now) { self.earned_by(self.rate, now) } else { (self.units, self.fraction) }
    }

    /// The same by a rate, since `earned_at`.
    fn earned_by(&self, rate: u64, until: Micros) -> (u64, u64) {
        let room = self.most.saturating_sub(self.units).saturating_sub(self.held.total());
        let slower = |time: u64| time.saturating_sub(time.div_ceil(SLOWER));
        let (whole, rest) = divide_product(slower(until.since(self.earned_at).count()), rate, self.period.max(1));
        let parts = rest.saturating_add(self.fraction);
        let (carried, rest) = if parts >= self.period { (1, parts.saturating_sub(self.period)) } else { (0, parts) };
        let gained = whole.saturating_add(carried);
        if gained < room { (self.units.saturating_add(gained), rest) } else { (self.units.saturating_add(room), 0) }
    }

    /// How long until the rate has earned what a cost lacks; `None` where no rate does.
    fn time_to_earn(&self, cost: u64, now: Micros) -> Option<Micros> {
        if self.rate == 0 || self.dead_at <= now || cost > self.most.saturating_sub(self.held.total()) {
            return None;
        }
        let (units, fraction) = self.earned(now);
        let missing = u128::from(cost.saturating_sub(units)).saturating_mul(self.period.into());
        let time = missing.saturating_sub(fraction.into()).div_ceil(self.rate.into());
        // It earns a little more slowly than its rate says.
        let time = time.saturating_add(time.div_ceil(u128::from(SLOWER.saturating_sub(1)))).saturating_add(1);
        Some(Micros::new(u64::try_from(time).unwrap_or(u64::MAX)))
    }

    const fn is_asking(&self, now: Micros) -> bool {
        // An answer that takes longer is of no use.
        self.asked_at.count() > 0 && now.since(self.asked_at).count() < LEASE_USE.count()
    }

    /// Whether it was last lent by this limit.
    fn is_by(&self, limit: &TokenBucket) -> bool {
        let rate = limit.rate();
        (self.capacity, self.refill, self.period) == (limit.capacity.count(), rate.tokens(), rate.period())
    }

    /// Whether anything is lent, or may be. What is held may come back to it.
    fn is_lent(&self, now: Micros) -> bool {
        let has_any = self.units > 0 || self.rate > 0 || self.held.total() > 0;
        (self.dead_at > now && has_any) || self.is_asking(now)
    }

    /// Whether another key may have the place: nothing is lent, nobody waits, and no denial is kept.
    fn is_free(&self, now: Micros) -> bool {
        !self.is_lent(now) && self.held.total() == 0 && self.denied_until <= now
    }

    /// Brings it to now: what is dead is gone. Gives how much that was.
    fn revive(&mut self, now: Micros) -> u64 {
        let expired = if self.dead_at <= now {
            (self.rate, self.fraction) = (0, 0);
            core::mem::take(&mut self.units)
        } else {
            if self.is_earning(now) {
                (self.units, self.fraction) = self.earned(now);
                self.earned_at = now;
            }
            0
        };
        let mut turned = generation(self.held_at, LEASE_LIFE);
        while self.held.total() > 0 && turned < generation(now, LEASE_LIFE) {
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

    /// The call that renews the lease, when it is due: with little time left, and what is too much goes back; or with few
    /// units left, where it does not earn them.
    fn renew(&mut self, now: Micros) -> Option<LeaseCall> {
        let part = |whole: u64| whole.checked_div(PART).unwrap_or(0);
        let ends = self.dead_at.since(now).count() < part(LEASE_USE.count());
        let is_due = ends || (self.rate == 0 && self.units < part(self.began_with));
        let surplus = if ends { self.units.saturating_sub(self.ahead(now)) } else { 0 };
        if is_due { self.ask(surplus, now) } else { None }
    }

    /// The call that is due now, if one is. `returned` units go back with it.
    fn ask(&mut self, returned: u64, now: Micros) -> Option<LeaseCall> {
        if self.is_asking(now) || (self.quiet_until > now && returned == 0) {
            return None;
        }
        let units = self.units.saturating_sub(returned);
        let ahead = if self.quiet_until > now { 0 } else { self.ahead(now) };
        let (wanted, kept) = (ahead.saturating_sub(units), units.saturating_add(self.held.total()));
        // Where the bucket denies, the lender is to know of those as well who are too seldom there for a lease.
        let is_scarce = self.denied_until.plus(LEASE_LIFE) > now;
        let demand = if ahead > 0 || is_scarce { self.demand(now) } else { 0 };
        if demand == 0 && returned == 0 && kept == 0 && self.rate == 0 {
            return None;
        }
        self.units = units;
        let seq = self.seq.saturating_add(1).max(now.count());
        // The first call of an entry knows nothing of those before, and takes them for heard.
        let acked = if self.seq == 0 { seq.saturating_sub(1) } else { self.acked };
        (self.seq, self.acked, self.asked_at) = (seq, acked, now);
        // What is told next begins with what is told now, so that a call soon after tells the same.
        let [requests, wanted_then] = [self.requests, self.wanted].map(|count| self.over(count, PAST, now));
        (self.since, self.requests, self.wanted) =
            (Micros::new(now.count().saturating_sub(PAST.count())), requests, wanted_then);
        Some(LeaseCall { lessee: self.lessee, seq, acked, kept, returned, wanted, demand })
    }

    /// What is going to be used for some time, if it goes on as it did. One request alone says nothing of that; and of a
    /// key that is seldom used a lease would go back, by a call of its own, before it is used.
    fn ahead(&self, now: Micros) -> u64 {
        if self.over(self.requests, IDLE, now) < 2 { 0 } else { self.demand(now) }
    }

    /// What is wanted in a second.
    fn demand(&self, now: Micros) -> u64 {
        if self.requests < 2 || self.is_idle(now) { 0 } else { self.over(self.wanted, AHEAD, now) }
    }

    /// How much of something there will be in some time, of which there was so much since it was last told.
    fn over(&self, count: u64, time: Micros, now: Micros) -> u64 {
        let span = now.since(self.since).count().max(SHORTEST);
        // Costs that were denied count as well: there is no bound to what is wanted but the one of what can be asked for.
        count.saturating_mul(time.count()).checked_div(span).unwrap_or(0).min(MAX_TOKENS)
    }

    fn answered(&mut self, call: &LeaseCall, answer: Option<LeaseAnswer>, limit: &TokenBucket, now: Micros) {
        let asked_at = core::mem::take(&mut self.asked_at);
        let before = core::mem::take(&mut self.rate);
        let Some(answer) = answer.filter(|answer| answer.seq == call.seq) else {
            // Whether the lender has heard it is not known, and so not at which rate it counts.
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
        self.most = answer.units.saturating_add(answer.room);
        let period = limit.rate().period();
        (self.capacity, self.refill) = (limit.capacity.count(), limit.rate().tokens());
        let before = over_period(before, self.period, period);
        if self.period != period {
            (self.period, self.fraction) = (period, 0);
        }
        // Since it asked the lender has counted the rate of before, and then this one.
        self.earned_at = asked_at;
        (self.units, self.fraction) = self.earned_by(before.min(answer.rate), now.min(self.dead_at));
        (self.rate, self.earned_at) = (answer.rate, now);
        self.dead_at = asked_at.plus(LEASE_USE);
        if answer.units <= call.kept && answer.rate == 0 {
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
            self.rate,
            self.period,
            self.fraction,
            self.earned_at.count(),
            self.most,
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
            self.capacity,
            self.refill,
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
            rate: next()?,
            period: next()?,
            fraction: next()?,
            earned_at: Micros::new(next()?),
            most: next()?,
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
            capacity: next()?,
            refill: next()?,
        })
    }
}

/// One entry: key, lessee, and twenty-five little-endian numbers.
const ENTRY_LEN: usize = 2 * Digest::LEN + 25 * 8;

/// Names the format of the stored bytes: another one has entries of another size.
pub const FORMAT: usize = ENTRY_LEN;
