//! Several local buckets, charged all or none, over compare-and-set.
//!
//! The round has a goal and knows how far each charge is, and works off the difference, one set at a time. A lost race
//! re-reads that set and checks again. So a denial that is found late, here or at the endpoint, needs no code of its
//! own: the goal changes, and the same work gives back.
//!
//! What may still have to be given back is held, not spent (see [`crate::slots`]): a bucket must not fill up beside
//! units that can come back to it.
//!
//! A lease of a shared budget is charged like a local bucket. Where it lacks the units, the endpoint is asked for that
//! charge, beside those that it is always asked for; what it says is noted in the lease's set when the decision settles.

use super::Rejection;
use crate::key::Digest;
use crate::lease::{Found, LeaseCall, LeaseHold, LeaseNews, LeaseSet};
use crate::limit::{Algorithm, TokenBucket, Verdict};
use crate::policy::{Charge, Policy, Sharing};
use crate::slots::{Hold, SETS, SlotSet};
use crate::units::{Micros, Tokens};

/// How often one round may lose a race before it gives up. Each loss means that another request was decided.
const MAX_LOST_RACES: u32 = 64;

/// What a table keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// Local buckets.
    Buckets,
    /// Leases of shared budgets.
    Leases,
}

/// Names a set of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SetId {
    /// Which table.
    pub table: Table,
    /// Whose table.
    pub sharing: Sharing,
    /// Which set of it, below [`SETS`].
    pub index: u32,
}

/// Something that kept a local bucket from being charged as it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Contention {
    /// Too many lost races.
    Exhausted,
    /// The stored bytes are not ours.
    Malformed,
    /// A newcomer was decided by its policy's overflow bucket.
    Overflow,
}

/// One policy's charge on a local bucket.
#[derive(Debug)]
pub(super) struct LocalCharge {
    policy: usize,
    key: Digest,
    overflow: Digest,
    cost: Tokens,
    limit: TokenBucket,
    set: SetId,
    /// Charged even when another policy denies.
    always: bool,
    verdict: Verdict,
    /// Whole units that were left when it was last looked at.
    left: u64,
    state: State,
    /// Of a lease: what its holder is called, where it is new.
    lessee: Digest,
    /// Of a lease: the request has been counted among those that want it.
    noted: bool,
    /// Of a lease: it is here to be given back, if nobody uses it.
    returning: bool,
    /// Of a lease: how long the request waits at most, once it has taken from it and asks for something else.
    waits: Micros,
    /// Of a lease: what the endpoint has said, to be noted.
    news: Option<LeaseNews>,
}

/// How far a charge is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing was taken, or it was given back.
    Free,
    /// Taken, until the decision is made.
    Held(Hold),
    /// Taken from a lease, until the decision is made.
    Lent(LeaseHold),
    /// Taken for good.
    Spent,
    /// A lease lacks it: the endpoint is to be asked, and about the lease as well if it is time.
    Asked(Option<LeaseCall>),
    /// The endpoint was asked, and what it said is noted.
    Told,
}

/// What the round works towards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    /// All charges taken, so that they can be given back.
    Reserve,
    /// All charges spent.
    Charge,
    /// All given back, but for those that are made always.
    Release,
}

impl LocalCharge {
    pub(super) fn new(charge: &Charge, policy: &Policy, limit: TokenBucket, sharing: Sharing, always: bool) -> Self {
        Self {
            policy: charge.policy,
            key: charge.key,
            overflow: policy.overflow(),
            cost: charge.cost,
            limit,
            set: SetId { table: Table::Buckets, sharing, index: charge.key.share(SETS) },
            always,
            verdict: Verdict::Admit,
            left: 0,
            state: State::Free,
            lessee: Digest::default(),
            noted: false,
            returning: false,
            waits: Micros::ZERO,
            news: None,
        }
    }

    /// A lease of a global policy's budget.
    pub(super) fn lease(
        charge: &Charge,
        policy: &Policy,
        limit: TokenBucket,
        sharing: Sharing,
        lessee: Digest,
        waits: Micros,
    ) -> Self {
        let bucket = Self::new(charge, policy, limit, sharing, false);
        Self { set: SetId { table: Table::Leases, ..bucket.set }, lessee, waits, ..bucket }
    }

    /// A lease that is to be renewed by a call that is made already.
    pub(super) fn renewal(self, call: LeaseCall) -> Self {
        Self { state: State::Asked(Some(call)), ..self }
    }

    /// A lease that is to be given back, if nobody uses it.
    pub(super) fn returning(self) -> Self {
        Self { returning: true, ..self }
    }

    fn is_lease(&self) -> bool {
        self.set.table == Table::Leases
    }

    /// The emergency bucket of a global policy: for each key one for the whole proxy, kept over flaps of the endpoint.
    pub(super) fn emergency(charge: &Charge, policy: &Policy, limit: TokenBucket) -> Self {
        Self::new(charge, policy, limit, Sharing::Proxy, false)
    }
}

#[derive(Debug)]
pub(super) struct LocalRound {
    charges: Vec<LocalCharge>,
    /// Every set of the charges, once, with what was last read of it.
    sets: Vec<(SetId, Option<Loaded>)>,
    /// Whether all charges were checked before any was made.
    checked: bool,
    goal: Goal,
    /// Something outside this round decides after it: what is taken stays held until then.
    tentative: bool,
    /// Could not be decided: no charge can be relied on.
    broken: bool,
    lost_races: u32,
    writing: Option<Writing>,
    contention: Vec<Contention>,
    /// Calls that renew leases in the background, by the charge.
    renewals: Vec<(usize, LeaseCall)>,
    /// Units of leases that died before they were spent.
    expired: u64,
}

#[derive(Debug)]
struct Loaded {
    set: Set,
    version: Option<u32>,
}

#[derive(Clone, Debug)]
enum Set {
    Buckets(SlotSet),
    Leases(LeaseSet),
}

impl Set {
    fn empty(table: Table) -> Self {
        match table {
            Table::Buckets => Self::Buckets(SlotSet::default()),
            Table::Leases => Self::Leases(LeaseSet::default()),
        }
    }

    fn encode(&self) -> Vec<u8> {
        match self {
            Self::Buckets(set) => set.encode(),
            Self::Leases(set) => set.encode(),
        }
    }
}

/// A write whose result is not known yet, and what it will have done.
#[derive(Debug)]
struct Writing {
    set: SetId,
    bytes: Vec<u8>,
    version: Option<u32>,
    /// How far each charge that it touches will be.
    states: Vec<(usize, State)>,
    /// Whether it takes from an overflow bucket.
    overflow: bool,
    renewals: Vec<(usize, LeaseCall)>,
    expired: u64,
}

/// How a lease served a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseUse {
    /// It had the units.
    Hit,
    /// It had not: the endpoint was asked.
    Miss,
    /// It knew of a denial.
    Denied,
}

pub(super) enum Task {
    Read(SetId),
    Write { set: SetId, bytes: Vec<u8>, version: Option<u32> },
    Settled,
}

impl LocalRound {
    /// `tentative`: whether [`confirm`](Self::confirm) or [`deny`](Self::deny) will follow once it has settled.
    pub(super) fn new(charges: Vec<LocalCharge>, tentative: bool) -> Self {
        let mut sets: Vec<(SetId, Option<Loaded>)> = Vec::new();
        for charge in &charges {
            if sets.iter().all(|(set, _)| *set != charge.set) {
                sets.push((charge.set, None));
            }
        }
        Self {
            charges,
            sets,
            checked: false,
            goal: Goal::Reserve,
            tentative,
            broken: false,
            lost_races: 0,
            writing: None,
            contention: Vec::new(),
            renewals: Vec::new(),
            expired: 0,
        }
    }

    /// Waits for the answer to calls that are made already.
    pub(super) fn waiting(charge: LocalCharge) -> Self {
        Self { checked: true, ..Self::new(vec![charge], true) }
    }

    /// The request goes on: what is held is spent.
    pub(super) fn confirm(&mut self) {
        self.goal = Goal::Charge;
        self.hear_no_more();
    }

    /// The request is rejected: only charges that are made always stay.
    pub(super) fn deny(&mut self) {
        self.goal = Goal::Release;
        self.hear_no_more();
    }

    /// Nothing more will be heard of calls about leases.
    fn hear_no_more(&mut self) {
        for charge in &mut self.charges {
            if let State::Asked(Some(call)) = charge.state {
                charge.news.get_or_insert(LeaseNews { call: Some((call, None)), ..LeaseNews::default() });
            }
        }
    }

    /// The lease charges that the endpoint is to be asked for, by policy and key, with the calls about their leases.
    pub(super) fn asked(&self) -> impl Iterator<Item = (usize, Digest, Option<LeaseCall>)> {
        self.charges.iter().filter_map(|charge| match charge.state {
            State::Asked(call) => Some((charge.policy, charge.key, call)),
            _ => None,
        })
    }

    /// What the endpoint has said about a lease, or that it has said nothing; to be noted when the round goes on.
    pub(super) fn tell(&mut self, policy: usize, key: Digest, news: LeaseNews) {
        let mut charges = self.charges.iter_mut();
        if let Some(charge) = charges.find(|charge| charge.policy == policy && charge.key == key)
            && matches!(charge.state, State::Asked(_))
        {
            charge.news = Some(news);
        }
    }

    /// Looks again for units that the endpoint was to be asked for: others may have brought them.
    pub(super) fn retry(&mut self) {
        for charge in &mut self.charges {
            if matches!(charge.state, State::Asked(_)) {
                charge.state = State::Free;
                if let Some((_, place)) = self.sets.iter_mut().find(|(set, _)| *set == charge.set) {
                    *place = None;
                }
            }
        }
        (self.checked, self.tentative, self.goal) = (false, false, Goal::Reserve);
    }

    /// How leases have served this request, by policy.
    pub(super) fn lease_uses(&self) -> impl Iterator<Item = (usize, LeaseUse)> {
        self.charges.iter().filter(|charge| charge.is_lease()).filter_map(|charge| {
            let how = match charge.state {
                State::Lent(_) | State::Spent => LeaseUse::Hit,
                State::Asked(_) | State::Told => LeaseUse::Miss,
                State::Free | State::Held(_) if charge.verdict != Verdict::Admit => LeaseUse::Denied,
                State::Free | State::Held(_) => return None,
            };
            Some((charge.policy, how))
        })
    }

    /// The calls that renew leases in the background, once; each with its policy and key.
    pub(super) fn take_renewals(&mut self) -> Vec<(usize, Digest, LeaseCall)> {
        let renewals = core::mem::take(&mut self.renewals);
        let of =
            |(index, call): (usize, LeaseCall)| self.charges.get(index).map(|charge| (charge.policy, charge.key, call));
        renewals.into_iter().filter_map(of).collect()
    }

    /// Units of leases that died before they were spent, once.
    pub(super) const fn take_expired(&mut self) -> u64 {
        core::mem::replace(&mut self.expired, 0)
    }

    /// Whether anything of its leases is lent, or may be, as far as it was looked at.
    pub(super) fn is_lent(&self, now: Micros) -> bool {
        self.charges.iter().any(|charge| match self.loaded(charge.set) {
            Some(Loaded { set: Set::Leases(set), .. }) => set.is_lent(charge.key, &charge.limit, now),
            _ => true,
        })
    }

    fn loaded(&self, id: SetId) -> Option<&Loaded> {
        self.sets.iter().find(|(set, _)| *set == id).and_then(|(_, loaded)| loaded.as_ref())
    }

    pub(super) fn take_contention(&mut self) -> Vec<Contention> {
        core::mem::take(&mut self.contention)
    }

    /// Why the request cannot go on, once the round has settled.
    pub(super) fn rejection(&self, emergency: bool) -> Option<Rejection> {
        if self.broken {
            return Some(Rejection::Unavailable {
                policies: self.charges.iter().map(|charge| charge.policy).collect(),
            });
        }
        Rejection::denied(self.charges.iter().map(|charge| (charge.policy, charge.verdict)), emergency)
    }

    /// Whether a policy's charge was made for good.
    pub(super) fn is_spent(&self, policy: usize) -> bool {
        self.charges.iter().any(|charge| charge.policy == policy && charge.state == State::Spent)
    }

    /// Of each charge its policy, the whole units left, and what it said; of none when it could not be decided.
    pub(super) fn standings(&self) -> impl Iterator<Item = (usize, u64, Verdict)> {
        let known = self.charges.iter().filter(|_| self.checked && !self.broken);
        let is_asked = |charge: &&LocalCharge| matches!(charge.state, State::Asked(_) | State::Told);
        known.filter(move |charge| !is_asked(charge)).map(|charge| (charge.policy, charge.left, charge.verdict))
    }

    pub(super) fn next(&mut self, now: Micros) -> Task {
        if let Some(Writing { set, bytes, version, .. }) = &self.writing {
            return Task::Write { set: *set, bytes: bytes.clone(), version: *version };
        }
        if !self.checked {
            if let Some(id) = self.unread() {
                return Task::Read(id);
            }
            self.check_all(now);
        }
        loop {
            let Some(id) = self.unsettled() else {
                if self.goal == Goal::Reserve && !self.tentative {
                    self.goal = Goal::Charge;
                    continue;
                }
                return Task::Settled;
            };
            let Some(loaded) = self.loaded(id) else { return Task::Read(id) };
            let (set, version) = (loaded.set.clone(), loaded.version);
            if let Some(writing) = self.change(id, set, version, now) {
                let task = Task::Write { set: id, bytes: writing.bytes.clone(), version: writing.version };
                self.writing = Some(writing);
                return task;
            }
        }
    }

    pub(super) fn stored(&mut self, value: Option<(&[u8], u32)>, now: Micros) {
        let Task::Read(id) = self.next(now) else { return };
        let loaded = match value {
            None => Loaded { set: Set::empty(id.table), version: None },
            Some((bytes, version)) => {
                let set = match id.table {
                    Table::Buckets => SlotSet::decode(bytes, now).map(Set::Buckets),
                    Table::Leases => LeaseSet::decode(bytes).map(Set::Leases),
                };
                let set = match (set, id.table) {
                    (Ok(set), _) => set,
                    (Err(_), Table::Buckets) => return self.give_up(Contention::Malformed),
                    (Err(_), Table::Leases) => {
                        // What was lent is lost, which costs nobody more than that.
                        self.contention.push(Contention::Malformed);
                        Set::empty(id.table)
                    }
                };
                Loaded { set, version: Some(version) }
            }
        };
        if let Some((_, place)) = self.sets.iter_mut().find(|(set, _)| *set == id) {
            *place = Some(loaded);
        }
    }

    pub(super) fn written(&mut self, done: bool) {
        let Some(writing) = self.writing.take() else { return };
        // Either way what was read is out of date.
        if let Some((_, place)) = self.sets.iter_mut().find(|(set, _)| *set == writing.set) {
            *place = None;
        }
        if done {
            if writing.overflow {
                self.contention.push(Contention::Overflow);
            }
            self.renewals.extend(writing.renewals);
            self.expired = self.expired.saturating_add(writing.expired);
            for (index, state) in writing.states {
                if let Some(charge) = self.charges.get_mut(index) {
                    if state == State::Free && charge.state != State::Free {
                        charge.left = charge.left.saturating_add(charge.cost.count());
                    }
                    charge.state = state;
                    charge.noted = charge.noted || charge.is_lease();
                }
            }
            return;
        }
        self.lost_races = self.lost_races.saturating_add(1);
        if self.lost_races > MAX_LOST_RACES {
            match writing.set.table {
                Table::Buckets => self.give_up(Contention::Exhausted),
                Table::Leases => self.pass_by(writing.set),
            }
        }
    }

    /// Leaves a set of leases to those who are faster: the endpoint decides, and what is noted there already stays as it
    /// is. Units that cannot be given back are spent.
    fn pass_by(&mut self, set: SetId) {
        self.lost_races = 0;
        for charge in self.charges.iter_mut().filter(|charge| charge.set == set) {
            charge.noted = true;
            charge.state = match (charge.state, self.goal) {
                (State::Free, Goal::Reserve) if !charge.returning => {
                    self.tentative = true;
                    State::Asked(None)
                }
                (State::Lent(_), Goal::Charge) => State::Spent,
                (State::Lent(_), Goal::Release) => State::Free,
                (State::Free, Goal::Reserve | Goal::Charge) => State::Told,
                (State::Asked(_), _) if charge.news.is_some() => State::Told,
                (state, _) => state,
            };
        }
    }

    /// Decides nothing further. What was taken and cannot be given back stays spent: the safe side.
    fn give_up(&mut self, why: Contention) {
        self.contention.push(why);
        self.broken = true;
        self.checked = true;
    }

    /// Checks every charge that is not made yet against what was read, before anything is spent.
    fn check_all(&mut self, now: Micros) {
        self.checked = true;
        for index in 0..self.charges.len() {
            let Some(charge) = self.charges.get(index).filter(|charge| charge.state == State::Free) else { continue };
            let Some(loaded) = self.loaded(charge.set) else { continue };
            let (mut state, mut is_missing, mut overflow) = (charge.state, false, false);
            let (verdict, left) = match &loaded.set {
                Set::Buckets(set) => {
                    let seat = set.seat(charge.key, charge.overflow, &charge.limit, now);
                    let verdict = charge.limit.check(&seat.balance, charge.cost, now);
                    overflow = seat.is_overflow() && verdict != Verdict::Admit;
                    (verdict, seat.balance.tokens)
                }
                Set::Leases(set) if charge.returning => {
                    if set.clone().give_back(charge.key, &charge.limit, now).is_none() {
                        state = State::Told;
                    }
                    is_missing = true;
                    (Verdict::Admit, 0)
                }
                Set::Leases(_) if charge.cost > charge.limit.capacity => (Verdict::Never, 0),
                Set::Leases(set) => match set.find(charge.key, charge.cost.count(), now) {
                    Found::There { left } => (Verdict::Admit, left),
                    Found::Denied { wait, left } => (Verdict::Wait(wait), left),
                    Found::Missing => {
                        is_missing = true;
                        (Verdict::Admit, 0)
                    }
                },
            };
            self.tentative |= is_missing;
            if overflow {
                self.contention.push(Contention::Overflow);
            }
            if let Some(charge) = self.charges.get_mut(index) {
                (charge.state, charge.verdict, charge.left) = (state, verdict, left);
            }
        }
        if self.charges.iter().any(|charge| charge.verdict != Verdict::Admit) {
            self.deny();
        }
    }

    /// Whether a charge is as the goal has it.
    fn is_settled(&self, charge: &LocalCharge) -> bool {
        match (self.goal, charge.state) {
            (Goal::Reserve, state) => state != State::Free,
            (_, State::Spent | State::Told) => true,
            // Once the decision is made, what the endpoint has said is noted.
            (_, State::Asked(_)) => charge.news.is_none(),
            (_, State::Held(_) | State::Lent(_)) => false,
            (Goal::Charge, State::Free) => charge.verdict != Verdict::Admit,
            // What a lease denied it notes, once: such requests are demand, too.
            (Goal::Release, State::Free) if charge.is_lease() => {
                charge.noted || !matches!(charge.verdict, Verdict::Wait(_))
            }
            (Goal::Release, State::Free) => !charge.always || charge.verdict != Verdict::Admit,
        }
    }

    /// A set that is to be read before the charges are checked.
    fn unread(&self) -> Option<SetId> {
        let free = self.charges.iter().filter(|charge| charge.state == State::Free);
        free.map(|charge| charge.set).find(|set| self.loaded(*set).is_none())
    }

    /// A set in which something is still to be done.
    fn unsettled(&self) -> Option<SetId> {
        if self.broken {
            return None;
        }
        self.charges.iter().find(|charge| !self.is_settled(charge)).map(|charge| charge.set)
    }

    /// The write that settles one set; `None` when a charge there is denied after all, which changes the goal.
    fn change(&mut self, id: SetId, mut set: Set, version: Option<u32>, now: Micros) -> Option<Writing> {
        if let Set::Leases(set) = &set {
            // Units that somebody else has taken since: the endpoint decides, so what is taken here is held.
            self.tentative |= self.charges.iter().any(|charge| {
                let is_missing = |found| found == Found::Missing;
                charge.set == id
                    && charge.state == State::Free
                    && is_missing(set.find(charge.key, charge.cost.count(), now))
            });
        }
        // The last set of a round that nothing follows needs no hold: with it the decision is made.
        let last = !self.tentative && self.charges.iter().all(|charge| charge.set == id || self.is_settled(charge));
        let mut writing = Writing {
            set: id,
            bytes: Vec::new(),
            version,
            states: Vec::new(),
            overflow: false,
            renewals: Vec::new(),
            expired: 0,
        };
        for index in 0..self.charges.len() {
            let Some(charge) = self.charges.get(index).filter(|charge| charge.set == id && !self.is_settled(charge))
            else {
                continue;
            };
            let state = match &mut set {
                Set::Buckets(set) => self.change_bucket(index, set, last, &mut writing, now),
                Set::Leases(set) if charge.state != State::Free => Some(self.settle_lease(charge, set, now)),
                Set::Leases(set) => self.change_lease(index, set, last, &mut writing, now),
            };
            let Some(state) = state else {
                // Somebody else took the units since they were checked: start over with the new goal.
                self.deny();
                return None;
            };
            writing.states.push((index, state));
        }
        if let Set::Leases(set) = &mut set {
            writing.expired = set.take_expired();
        }
        writing.bytes = set.encode();
        Some(writing)
    }

    /// Moves a local bucket's charge on; gives how far it is then, `None` when it is denied.
    fn change_bucket(
        &mut self,
        index: usize,
        set: &mut SlotSet,
        last: bool,
        writing: &mut Writing,
        now: Micros,
    ) -> Option<State> {
        let charge = self.charges.get_mut(index)?;
        let (cost, limit) = (charge.cost, charge.limit);
        match charge.state {
            State::Held(hold) if self.goal == Goal::Release => {
                set.give_back(hold, cost, &limit, now);
                // A charge that is made always is never held.
                Some(State::Free)
            }
            State::Held(hold) => {
                set.confirm(hold, cost, &limit, now);
                Some(State::Spent)
            }
            _ => {
                let seat = set.seat(charge.key, charge.overflow, &limit, now);
                charge.verdict = limit.check(&seat.balance, cost, now);
                // It is as good as done: should the write fail, it is looked at again.
                let spent = if charge.verdict == Verdict::Admit { cost.count() } else { 0 };
                charge.left = seat.balance.tokens.saturating_sub(spent);
                if charge.verdict != Verdict::Admit {
                    return None;
                }
                writing.overflow |= seat.is_overflow();
                if charge.always || last {
                    set.spend(seat, cost, &limit, now);
                    Some(State::Spent)
                } else {
                    Some(State::Held(set.hold(seat, cost, &limit, now)))
                }
            }
        }
    }

    /// Takes a charge from a lease, or has the endpoint asked; `None` when it is denied.
    fn change_lease(
        &mut self,
        index: usize,
        set: &mut LeaseSet,
        last: bool,
        writing: &mut Writing,
        now: Micros,
    ) -> Option<State> {
        // Another set of leases can come to ask as well.
        let is_free = |charge: &LocalCharge| charge.is_lease() && charge.state == State::Free;
        let set_of = self.charges.get(index)?.set;
        let may_wait = self.tentative || self.charges.iter().any(|charge| charge.set != set_of && is_free(charge));
        let charge = self.charges.get_mut(index)?;
        let (key, limit, cost) = (charge.key, charge.limit, charge.cost.count());
        if self.goal == Goal::Release {
            writing.renewals.extend(set.deny(key, cost, now).map(|call| (index, call)));
            return Some(State::Free);
        }
        if charge.returning {
            // Somebody else may be at it already.
            return Some(set.give_back(key, &limit, now).map_or(State::Told, |call| State::Asked(Some(call))));
        }
        match set.find(key, cost, now) {
            // Units that are spent when the lender counts them no more would be there a second time.
            Found::There { .. } if may_wait && !set.lasts(key, now.plus(charge.waits)) => {
                self.tentative = true;
                Some(State::Asked(set.miss(key, cost, charge.noted, charge.lessee, now)))
            }
            Found::There { left } => {
                charge.left = left;
                let (hold, renewal) = set.take(key, cost, !last, now);
                writing.renewals.extend(renewal.map(|call| (index, call)));
                Some(hold.map_or(State::Spent, State::Lent))
            }
            Found::Denied { wait, left } => {
                (charge.verdict, charge.left) = (Verdict::Wait(wait), left);
                None
            }
            Found::Missing => Some(State::Asked(set.miss(key, cost, charge.noted, charge.lessee, now))),
        }
    }

    /// Settles what was taken from a lease, or notes what the endpoint has said of it.
    fn settle_lease(&self, charge: &LocalCharge, set: &mut LeaseSet, now: Micros) -> State {
        let back = self.goal == Goal::Release;
        match (charge.state, &charge.news) {
            (State::Lent(hold), _) => {
                set.settle(charge.key, hold, charge.cost.count(), back, now);
                if back { State::Free } else { State::Spent }
            }
            (_, Some(news)) => {
                set.told(charge.key, news, &charge.limit, now);
                State::Told
            }
            (state, None) => state,
        }
    }
}
