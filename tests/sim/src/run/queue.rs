//! What is to happen, in the order of its time; at the same time, in the order in which it was planned.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use tollgate_core::units::Micros;

pub struct Queue<T> {
    order: BinaryHeap<Reverse<(Micros, u64)>>,
    events: BTreeMap<u64, T>,
    next: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { order: BinaryHeap::new(), events: BTreeMap::new(), next: 0 }
    }
}

impl<T> Queue<T> {
    pub fn push(&mut self, at: Micros, event: T) {
        self.order.push(Reverse((at, self.next)));
        self.events.insert(self.next, event);
        self.next += 1;
    }

    pub fn pop(&mut self) -> Option<(Micros, T)> {
        let Reverse((at, number)) = self.order.pop()?;
        self.events.remove(&number).map(|event| (at, event))
    }
}
