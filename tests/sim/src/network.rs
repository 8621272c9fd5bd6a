//! Messages between parts: late, lost, doubled and overtaken by others.

use crate::random::Random;
use std::fmt::{self, Display, Formatter};
use tollgate_core::units::Micros;

/// One that sends and receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Proxy(usize),
    Endpoint(usize),
    Store,
}

/// How good the network is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The least and the most that a message takes.
    pub delay: (Micros, Micros),
    /// In so many of a thousand messages ...
    pub spikes: u32,
    /// ... it takes up to this.
    pub spike: Micros,
    /// Of a thousand messages so many are lost ...
    pub loss: u32,
    /// ... and so many arrive twice.
    pub twice: u32,
    /// Of a thousand answers to a proxy so many are none.
    pub garbled: u32,
}

pub struct Network {
    seed: u64,
    link: Link,
    storms: Vec<(Link, Micros)>,
    cuts: Vec<(Part, Part, Micros)>,
}

impl Network {
    pub const fn new(seed: u64, link: Link) -> Self {
        Self { seed, link, storms: Vec::new(), cuts: Vec::new() }
    }

    pub fn storm(&mut self, link: Link, until: Micros) {
        self.storms.push((link, until));
    }

    pub fn cut(&mut self, one: Part, other: Part, until: Micros) {
        self.cuts.push((one, other, until));
    }

    /// Nothing is lost or late any more.
    pub fn heal(&mut self) {
        self.storms.clear();
        self.cuts.clear();
        let (least, most) = self.link.delay;
        let most = most.min(Micros::from_millis(1));
        self.link = Link { delay: (least.min(most), most), spikes: 0, loss: 0, twice: 0, garbled: 0, ..self.link };
    }

    /// How long each copy of a message takes; none when it is lost. `names` tells it from every other message.
    pub fn delays(&mut self, from: Part, to: Part, names: &[u64], now: Micros) -> Vec<Micros> {
        self.storms.retain(|(_, until)| *until > now);
        self.cuts.retain(|(.., until)| *until > now);
        let joins =
            |(one, other, _): &(Part, Part, Micros)| (*one, *other) == (from, to) || (*other, *one) == (from, to);
        let link = self.storms.last().map_or(self.link, |(link, _)| *link);
        let mut random = Random::of(self.seed, names);
        if self.cuts.iter().any(joins) || random.per_mille(link.loss) {
            return Vec::new();
        }
        let copies = 1 + usize::from(random.per_mille(link.twice));
        (0..copies).map(|_| link.delay(&mut random)).collect()
    }
}

impl Network {
    /// Whether something in between answers in the endpoint's place.
    pub fn is_garbled(&self, names: &[u64]) -> bool {
        let link = self.storms.last().map_or(self.link, |(link, _)| *link);
        Random::of(!self.seed, names).per_mille(link.garbled)
    }
}

impl Link {
    fn delay(&self, random: &mut Random) -> Micros {
        let (least, most) = self.delay;
        let most = if random.per_mille(self.spikes) { self.spike.max(most) } else { most };
        Micros::new(random.between(least.count(), most.count()))
    }
}

impl Display for Part {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Proxy(number) => write!(f, "proxy {number}"),
            Self::Endpoint(number) => write!(f, "endpoint {number}"),
            Self::Store => f.write_str("the store"),
        }
    }
}

impl Display for Link {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { delay: (least, most), spikes, spike, loss, twice, garbled } = self;
        write!(f, "{least} to {most}, {spikes}‰ up to {spike}, {loss}‰ lost, {twice}‰ twice, {garbled}‰ garbled")
    }
}
