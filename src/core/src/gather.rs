//! Group commit: requests that need the endpoint wait together, and one call carries them all.
//!
//! While no call is out, whoever waits is sent at once. While one is out, newcomers gather for the next; it goes when
//! the first is answered, when it would be full, or when the first has been out for so long that it may be lost. Every
//! waiter has its own deadline, which no lost call can stretch.

use crate::units::Micros;
use std::collections::VecDeque;

/// The most calls that one worker has out at once for requests, and as many more that no request is in.
const MAX_CALLS: usize = if IS_CALL_FOR_EACH { 1024 } else { 4 };

/// The most requests in one call; half of what the endpoint takes.
const MAX_BATCH: usize = if IS_CALL_FOR_EACH { 1 } else { 64 };

/// Whether each request has a call of its own, to compare with. No product is built so.
const IS_CALL_FOR_EACH: bool = cfg!(feature = "call-for-each");

/// A call that has been out for this part of its timeout no longer holds up the next.
const PATIENCE: u64 = 4;

/// The requests of one worker that wait for the endpoint.
#[derive(Debug)]
pub struct Gather {
    timeout: Micros,
    max_in_flight: usize,
    waiting: VecDeque<Waiter>,
    /// What is sent only with room that the others leave.
    behind: VecDeque<Waiter>,
    calls: Vec<Call>,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    id: u64,
    deadline: Micros,
    behind: bool,
}

#[derive(Debug)]
struct Call {
    token: u32,
    sent: Micros,
    /// No request is in it.
    behind: bool,
    /// In the order of the batch; `None` for a request that no longer waits.
    waiters: Vec<Option<Waiter>>,
}

impl Call {
    fn count(&self, behind: bool) -> usize {
        self.waiters.iter().flatten().filter(|waiter| waiter.behind == behind).count()
    }
}

/// So many requests wait already that another would only wait in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyInFlight;

impl core::fmt::Display for TooManyInFlight {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("too many requests wait for the endpoint")
    }
}

impl core::error::Error for TooManyInFlight {}

impl Gather {
    /// `timeout` is how long a request waits, `max_in_flight` how many may wait at once.
    #[must_use]
    pub fn new(timeout: Micros, max_in_flight: u32) -> Self {
        let max_in_flight = usize::try_from(max_in_flight).unwrap_or(usize::MAX);
        Self { timeout, max_in_flight, waiting: VecDeque::new(), behind: VecDeque::new(), calls: Vec::new() }
    }

    /// A request starts to wait.
    ///
    /// # Errors
    /// When `max_in_flight` wait already.
    pub fn join(&mut self, id: u64, now: Micros) -> Result<(), TooManyInFlight> {
        let out: usize = self.calls.iter().map(|call| call.count(false)).sum();
        if self.waiting.len().saturating_add(out) >= self.max_in_flight {
            return Err(TooManyInFlight);
        }
        self.waiting.push_back(Waiter { id, deadline: now.plus(self.timeout), behind: false });
        Ok(())
    }

    /// Something joins that nobody waits for, such as a policy in shadow. It goes with the room that requests leave, and
    /// never takes any of theirs.
    ///
    /// # Errors
    /// When `max_in_flight` of these wait already.
    pub fn join_behind(&mut self, id: u64, now: Micros) -> Result<(), TooManyInFlight> {
        let out: usize = self.calls.iter().map(|call| call.count(true)).sum();
        if self.behind.len().saturating_add(out) >= self.max_in_flight {
            return Err(TooManyInFlight);
        }
        self.behind.push_back(Waiter { id, deadline: now.plus(self.timeout), behind: true });
        Ok(())
    }

    /// The requests that have not been sent yet, in order.
    #[must_use]
    pub fn waiting(&self) -> Vec<u64> {
        self.waiting.iter().map(|waiter| waiter.id).collect()
    }

    /// A request no longer waits: its client left, or it was decided otherwise.
    pub fn leave(&mut self, id: u64) {
        self.waiting.retain(|waiter| waiter.id != id);
        for place in self.calls.iter_mut().flat_map(|call| &mut call.waiters) {
            if place.is_some_and(|waiter| waiter.id == id) {
                *place = None;
            }
        }
    }

    /// The batch to send now, if one is due, in order. Follow it by [`sent`](Self::sent) or [`unsent`](Self::unsent).
    #[must_use]
    pub fn due(&self, now: Micros) -> Vec<u64> {
        if !self.is_due(now) {
            return Vec::new();
        }
        self.waiting.iter().chain(&self.behind).take(MAX_BATCH).map(|waiter| waiter.id).collect()
    }

    /// Whether there is a batch to send now.
    #[must_use]
    pub fn is_due(&self, now: Micros) -> bool {
        let is_behind = self.waiting.is_empty();
        // A call that no request is in holds up none: without it they would have been sent as well.
        let calls = || self.calls.iter().filter(|call| is_behind || !call.behind);
        let held = calls().any(|call| {
            let out = now.since(call.sent).count().saturating_mul(PATIENCE);
            out < self.timeout.count()
        });
        let waits = !(is_behind && self.behind.is_empty());
        waits && calls().count() < MAX_CALLS && (!held || self.waiting.len() >= MAX_BATCH)
    }

    /// The first `count` that waited were sent in the call `token`.
    pub fn sent(&mut self, count: usize, token: u32, now: Micros) {
        let waiters = self.take(count);
        let behind = waiters.iter().all(|waiter| waiter.behind);
        self.calls.push(Call { token, sent: now, behind, waiters: waiters.into_iter().map(Some).collect() });
    }

    /// The first `count` that waited could not be sent, and no longer wait.
    pub fn unsent(&mut self, count: usize) {
        self.take(count);
    }

    fn take(&mut self, count: usize) -> Vec<Waiter> {
        let mut next = || self.waiting.pop_front().or_else(|| self.behind.pop_front());
        (0..count).map_while(|_| next()).collect()
    }

    /// When a call was sent that is still out, and whether no request was ever in it.
    #[must_use]
    pub fn sent_at(&self, token: u32) -> Option<(Micros, bool)> {
        self.calls.iter().find(|call| call.token == token).map(|call| (call.sent, call.behind))
    }

    /// A call has ended. Gives its requests in the order of the batch, `None` for those that no longer wait.
    pub fn answered(&mut self, token: u32) -> Vec<Option<u64>> {
        let Some(index) = self.calls.iter().position(|call| call.token == token) else { return Vec::new() };
        let call = self.calls.swap_remove(index);
        call.waiters.into_iter().map(|place| place.map(|waiter| waiter.id)).collect()
    }

    /// The requests whose time is up. They no longer wait.
    pub fn expired(&mut self, now: Micros) -> Vec<u64> {
        let mut expired = Vec::new();
        for waiting in [&mut self.waiting, &mut self.behind] {
            waiting.retain(|waiter| {
                let live = waiter.deadline > now;
                if !live {
                    expired.push(waiter.id);
                }
                live
            });
        }
        for call in &mut self.calls {
            for place in &mut call.waiters {
                if let Some(waiter) = place.filter(|waiter| waiter.deadline <= now) {
                    expired.push(waiter.id);
                    *place = None;
                }
            }
        }
        // A host ends every call; should one never end, it must not hold its place for ever.
        let forgotten = self.timeout.plus(self.timeout).plus(Micros::from_secs(1));
        self.calls.retain(|call| now.since(call.sent) < forgotten);
        expired
    }

    /// How many wait, behind too.
    #[must_use]
    pub fn len(&self) -> usize {
        let out: usize = self.calls.iter().map(|call| call.waiters.iter().flatten().count()).sum();
        self.waiting.len().saturating_add(self.behind.len()).saturating_add(out)
    }

    /// Whether nobody waits: no clock need be watched.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
            && self.behind.is_empty()
            && self.calls.iter().all(|call| call.waiters.iter().all(Option::is_none))
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const fn ms(millis: u64) -> Micros {
        Micros::from_millis(millis)
    }

    fn gather() -> Gather {
        Gather::new(ms(40), 256)
    }

    /// Sends what is due, as a host would.
    fn send(gather: &mut Gather, token: u32, now: Micros) -> Vec<u64> {
        let due = gather.due(now);
        if !due.is_empty() {
            gather.sent(due.len(), token, now);
        }
        due
    }

    #[test]
    fn the_first_goes_at_once_and_newcomers_gather_for_the_next_call() {
        let mut gather = gather();
        gather.join(1, ms(0)).unwrap();
        assert_eq!(send(&mut gather, 70, ms(0)), [1]);
        for id in 2..5 {
            gather.join(id, ms(1)).unwrap();
            assert_eq!(send(&mut gather, 71, ms(1)), [0; 0]);
        }
        assert_eq!(gather.answered(70), [Some(1)]);
        assert_eq!(send(&mut gather, 71, ms(2)), [2, 3, 4]);
    }

    #[test]
    fn a_call_that_no_request_is_in_holds_up_no_request() {
        let mut gather = gather();
        for (id, token) in [(100, 70), (101, 71), (102, 72), (103, 73)] {
            let now = ms(10 * (id - 100));
            gather.join_behind(id, now).unwrap();
            assert_eq!(send(&mut gather, token, now), [id], "four of them are out");
        }
        gather.join_behind(104, ms(31)).unwrap();
        assert_eq!(send(&mut gather, 74, ms(31)), [0; 0], "and no fifth");
        gather.join(1, ms(31)).unwrap();
        assert_eq!(send(&mut gather, 74, ms(31)), [1, 104], "a request goes at once");
        assert_eq!(gather.sent_at(73), Some((ms(30), true)));
        gather.leave(1);
        assert_eq!(gather.sent_at(74), Some((ms(31), false)), "a request was in it");
        gather.join(2, ms(32)).unwrap();
        assert_eq!(send(&mut gather, 75, ms(32)), [0; 0], "requests wait for one another");
        assert_eq!(gather.answered(74), [None, Some(104)]);
        assert_eq!(gather.sent_at(74), None);
        assert_eq!(send(&mut gather, 75, ms(33)), [2]);
    }

    #[test]
    fn a_call_that_may_be_lost_does_not_hold_up_the_next() {
        let mut gather = gather();
        gather.join(1, ms(0)).unwrap();
        send(&mut gather, 70, ms(0));
        gather.join(2, ms(5)).unwrap();
        assert_eq!(send(&mut gather, 71, ms(9)), [0; 0]);
        assert_eq!(send(&mut gather, 71, ms(10)), [2]);
        assert_eq!(gather.answered(71), [Some(2)], "answers may come in any order");
        assert_eq!(gather.answered(70), [Some(1)]);
    }

    #[test]
    fn every_waiter_has_its_own_deadline() {
        let mut gather = gather();
        gather.join(1, ms(0)).unwrap();
        send(&mut gather, 70, ms(0));
        gather.join(2, ms(8)).unwrap();
        assert_eq!(gather.expired(ms(39)), [0; 0]);
        assert_eq!(gather.expired(ms(40)), [1]);
        assert_eq!(gather.expired(ms(48)), [2]);
        assert!(gather.is_empty());
        assert_eq!(gather.answered(70), [None], "a late answer decides nobody");
    }

    #[test]
    fn who_left_gets_no_answer_and_shifts_nobody_elses() {
        let mut gather = gather();
        for id in 1..=3 {
            gather.join(id, ms(0)).unwrap();
        }
        send(&mut gather, 70, ms(0));
        gather.leave(2);
        assert_eq!(gather.answered(70), [Some(1), None, Some(3)]);
        gather.join(4, ms(1)).unwrap();
        gather.leave(4);
        assert_eq!(send(&mut gather, 71, ms(1)), [0; 0]);
    }

    #[test]
    fn all_that_waits_is_bounded() {
        let mut gather = Gather::new(ms(40), 300);
        for id in 0..300 {
            gather.join(id, ms(0)).unwrap();
        }
        assert_eq!(gather.join(300, ms(0)), Err(TooManyInFlight));
        let sent: Vec<usize> = (0..6).map(|token| send(&mut gather, token, ms(0)).len()).collect();
        assert_eq!(sent, [64, 64, 64, 64, 0, 0], "four full calls, and no more while they are out");
        assert_eq!(gather.len(), 300);
        assert_eq!(gather.answered(0).len(), 64);
        assert_eq!(gather.len(), 236);
        assert!(gather.join(300, ms(1)).is_ok());
    }

    #[test]
    fn what_could_not_be_sent_waits_no_longer() {
        let mut gather = gather();
        gather.join(1, ms(0)).unwrap();
        gather.join(2, ms(0)).unwrap();
        let due = gather.due(ms(0));
        gather.unsent(due.len());
        assert!(gather.is_empty());
        assert_eq!(gather.answered(9), [], "a call that is not known has no waiters");
    }

    #[test]
    fn a_call_that_never_ends_is_forgotten() {
        let mut gather = gather();
        for token in 0..4 {
            gather.join(token.into(), ms(0)).unwrap();
            send(&mut gather, token, ms(u64::from(token) * 10));
        }
        gather.expired(ms(50));
        gather.join(9, ms(2000)).unwrap();
        assert_eq!(gather.due(ms(2000)), [0; 0]);
        gather.expired(ms(2000));
        assert_eq!(gather.due(ms(2000)), [9]);
    }

    #[test]
    fn what_nobody_waits_for_takes_no_room_of_those_who_wait() {
        let mut gather = gather();
        let bound = (0..).take_while(|id| gather.join_behind(1_000 + id, ms(0)).is_ok()).count();
        assert!((0..bound as u64).all(|id| gather.join(id, ms(0)).is_ok()), "as many requests as ever");
        assert_eq!(gather.join(999, ms(0)), Err(TooManyInFlight));
        let mut order = Vec::new();
        for token in 0..4 {
            order.extend(send(&mut gather, token, ms(token.into())));
            let _ = gather.answered(token);
        }
        let (first, then) = order.split_at(bound);
        assert!(first.iter().all(|id| *id < 1_000) && then.iter().all(|id| *id >= 1_000), "{order:?}");
        gather.expired(ms(1_000));
        assert!(gather.is_empty());
    }

    #[test]
    fn what_nobody_waits_for_is_watched_all_the_same() {
        let mut gather = gather();
        gather.join_behind(1, ms(0)).unwrap();
        assert!(!gather.is_empty(), "or its time would never be up");
        assert_eq!(gather.expired(ms(40)), [1]);
        assert!(gather.is_empty());
    }
}
