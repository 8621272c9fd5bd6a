//! Parts that are wrong on purpose, to see that the checks find it. Nothing else switches them on.

/// One thing that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// The store spends the first charge of a decision alone.
    ForgottenSecondCharge,
    /// The store spends what a denied decision asks of buckets that have it.
    ChargedDenial,
    /// The store refills twice.
    DoubleRefill,
    /// The store forgets buckets shortly before they are full.
    EarlySweep,
    /// The store makes a decision again that it has made under the same id.
    ForgottenIds,
    /// An endpoint gives the answers of a batch in the wrong order.
    SwappedAnswers,
    /// An endpoint takes a store that is silent for one that admits.
    SilenceAdmits,
    /// The store tells callers to come back a little early.
    EarlyWait,
    /// A worker forgets now and then whose time is up.
    DroppedWaiter,
    /// A worker does not give back what a denied request holds of local buckets.
    KeptHold,
    /// A proxy's local buckets are now and then written as they were before.
    LostLocalWrite,
    /// A worker takes every answer for a failure once the breaker was open.
    StuckBreaker,
    /// A worker lets all requests wait that come.
    EndlessQueue,
    /// The store does not count what it has lent.
    NoLedger,
    /// The store takes in a report again that it has taken in.
    ReportsCountTwice,
    /// The store takes a bucket that it has lost for a full one, whatever the policy asks for.
    NothingLearnt,
    /// A worker keeps what it gives back.
    KeptGiveBack,
    /// A report that is sent again has a number of its own.
    Renumbered,
    /// A worker uses a lease after its end.
    UsedAfterEnd,
    /// A worker never looks for leases that nobody uses.
    NeverGivenBack,
    /// The store counts what it has lent until it comes back, if ever.
    NeverForgotten,
    /// The store gives buckets nothing that have lent something.
    NoRefillBesideLeases,
    /// A worker keeps each denial half a minute longer.
    LongDenial,
}

impl Sabotage {
    pub const ALL: [Self; 23] = [
        Self::ForgottenSecondCharge,
        Self::ChargedDenial,
        Self::DoubleRefill,
        Self::EarlySweep,
        Self::ForgottenIds,
        Self::SwappedAnswers,
        Self::SilenceAdmits,
        Self::EarlyWait,
        Self::DroppedWaiter,
        Self::KeptHold,
        Self::LostLocalWrite,
        Self::StuckBreaker,
        Self::EndlessQueue,
        Self::NoLedger,
        Self::ReportsCountTwice,
        Self::NothingLearnt,
        Self::KeptGiveBack,
        Self::Renumbered,
        Self::UsedAfterEnd,
        Self::NeverGivenBack,
        Self::NeverForgotten,
        Self::NoRefillBesideLeases,
        Self::LongDenial,
    ];
}
