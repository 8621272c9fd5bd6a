//! Calendar windows: from a unit and the name of a time zone to the moments at which its windows begin.
//!
//! The time zones come with the program, so that all endpoints of one version agree, whatever their hosts have.
//! A zone is looked up once, and its boundaries once in each window. Only names of the database are kept, and so no
//! more than there are in it.

#[cfg(test)]
mod tests;

use jiff::civil::Date;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, ToSpan};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock};
use tollgate_core::limit::{Boundaries, CalendarUnit, FixedWindow, Limit, Window, ZoneName};
use tollgate_core::policy::nearest;
use tollgate_core::units::Micros;
use tollgate_core::wire::DecisionRequest;

static DATABASE: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

static ZONES: LazyLock<RwLock<HashMap<ZoneName, Arc<Zone>>>> = LazyLock::new(RwLock::default);

/// Whether there is such a time zone; if not, the error says which was probably meant.
pub fn check(name: &ZoneName) -> Result<(), String> {
    zone(name).map(drop).ok_or_else(|| {
        let name = name.as_str();
        match meant(name) {
            Some(meant) => format!("unknown time zone {name:?}: did you mean {meant:?}?"),
            None => ZoneName::refusal(name),
        }
    })
}

/// The first time zone of this decision that there is not.
pub fn strange(decision: &DecisionRequest) -> Option<&ZoneName> {
    decision.charges.iter().find_map(|charge| match &charge.limit {
        Limit::FixedWindow(FixedWindow { window: Window::Calendar(window), .. }) => {
            zone(&window.zone).is_none().then_some(&window.zone)
        }
        _ => None,
    })
}

/// Looks up the boundaries of all calendar windows, those around `now`.
pub fn resolve(decisions: &mut [DecisionRequest], now: Micros) {
    for charge in decisions.iter_mut().flat_map(|decision| &mut decision.charges) {
        if let Limit::FixedWindow(FixedWindow { window: Window::Calendar(window), .. }) = &mut charge.limit {
            // Without boundaries no store admits.
            let known = zone(&window.zone).and_then(|zone| zone.boundaries(window.unit, now));
            window.known = known.unwrap_or_default();
        }
    }
}

fn zone(name: &ZoneName) -> Option<Arc<Zone>> {
    if let Some(zone) = ZONES.read().unwrap_or_else(PoisonError::into_inner).get(name) {
        return Some(Arc::clone(zone));
    }
    let time_zone = DATABASE.get(name.as_str()).ok()?;
    // The database does not tell capitals from small letters. Here a zone has one spelling, and so one place.
    if time_zone.iana_name() != Some(name.as_str()) {
        return None;
    }
    let zone = Arc::new(Zone { time_zone, latest: Default::default() });
    ZONES.write().unwrap_or_else(PoisonError::into_inner).insert(*name, Arc::clone(&zone));
    Some(zone)
}

/// The name that was probably meant: one in other capitals, one whose last part this is, or a near one.
fn meant(name: &str) -> Option<String> {
    let known: Vec<String> = DATABASE.available().map(|known| known.to_string()).collect();
    let same = |known: &&String| known.eq_ignore_ascii_case(name);
    let last_part = |known: &&String| known.rsplit('/').next().is_some_and(|part| part.eq_ignore_ascii_case(name));
    if let Some(found) = known.iter().find(same).or_else(|| known.iter().find(last_part)) {
        return Some(found.clone());
    }
    // Distances are dear, and a name of another length is not near.
    let near = |known: &&str| known.len().abs_diff(name.len()) <= 4;
    nearest(name, &known.iter().map(String::as_str).filter(near).collect::<Vec<&str>>()).map(String::from)
}

struct Zone {
    time_zone: TimeZone,
    /// What was found last, for each unit.
    latest: [Mutex<Boundaries>; CalendarUnit::WORDS.len()],
}

impl Zone {
    fn boundaries(&self, unit: CalendarUnit, now: Micros) -> Option<Boundaries> {
        let mut latest = self.latest[unit as usize].lock().unwrap_or_else(PoisonError::into_inner);
        if !latest.are_around(now) {
            *latest = self.look_up(unit, now)?;
        }
        Some(*latest)
    }

    /// Time zones know whole seconds; times before 1970 are 1970.
    fn look_up(&self, unit: CalendarUnit, now: Micros) -> Option<Boundaries> {
        let (start, end) = self.window(unit, i64::try_from(now.count() / 1_000_000).ok()?)?;
        let (before, _) = self.window(unit, start - 1)?;
        let (_, after) = self.window(unit, end)?;
        Boundaries::new([before, start, end, after].map(|at| Micros::from_secs(u64::try_from(at).unwrap_or(0))))
    }

    /// The window that a moment is in: where it begins, and where the next one does.
    fn window(&self, unit: CalendarUnit, at: i64) -> Option<(i64, i64)> {
        match unit {
            CalendarUnit::Minute => self.on_the_clock(60, at),
            CalendarUnit::Hour => self.on_the_clock(3600, at),
            CalendarUnit::Day => self.in_the_calendar(at, self.date(at)?, Date::tomorrow),
            CalendarUnit::Month => {
                self.in_the_calendar(at, self.date(at)?.first_of_month(), |month| month.checked_add(1.month()))
            }
        }
    }

    /// A minute or an hour. One that a change of the clock cuts short is a window of its own, and one that the clock
    /// shows again is another: none is longer than it says.
    fn on_the_clock(&self, length: i64, at: i64) -> Option<(i64, i64)> {
        let offset = self.time_zone.to_offset(Timestamp::from_second(at).ok()?).seconds();
        let start = at - (at + i64::from(offset)).rem_euclid(length);
        let end = start + length;
        let changed = self.change_until(at).map_or(start, |change| change.max(start));
        let changes = self.change_after(at).map_or(end, |change| change.min(end));
        Some((changed, changes))
    }

    /// A day or a month: `first` is the first date of that of `at`.
    ///
    /// It begins when the local clock first shows one of its dates. If the clock is then set back over midnight, the
    /// old date is shown again, but its window is over. A date that the clock leaves out has no window.
    fn in_the_calendar(
        &self,
        at: i64,
        mut first: Date,
        following: impl Fn(Date) -> Result<Date, jiff::Error>,
    ) -> Option<(i64, i64)> {
        loop {
            let next = following(first).ok()?;
            let end = self.beginning_of(next)?;
            if end > at {
                return Some((self.beginning_of(first)?, end));
            }
            first = next;
        }
    }

    fn date(&self, at: i64) -> Option<Date> {
        Some(self.time_zone.to_datetime(Timestamp::from_second(at).ok()?).date())
    }

    /// When the local clock first shows this date, or a later one where it leaves this one out.
    fn beginning_of(&self, date: Date) -> Option<i64> {
        let midnight = date.at(0, 0, 0, 0);
        match self.time_zone.to_ambiguous_timestamp(midnight).offset() {
            AmbiguousOffset::Unambiguous { offset } | AmbiguousOffset::Fold { before: offset, .. } => {
                Some(offset.to_timestamp(midnight).ok()?.as_second())
            }
            // No clock shows midnight: the day begins with what it shows after the change.
            AmbiguousOffset::Gap { before, .. } => self.change_until(before.to_timestamp(midnight).ok()?.as_second()),
        }
    }

    /// The last change of the clock at or before that moment.
    fn change_until(&self, at: i64) -> Option<i64> {
        let changes = self.time_zone.preceding(Timestamp::from_second(at + 1).ok()?);
        changes.map(|change| change.timestamp().as_second()).find(|change| self.is_change(*change))
    }

    /// The first one after it.
    fn change_after(&self, at: i64) -> Option<i64> {
        let changes = self.time_zone.following(Timestamp::from_second(at).ok()?);
        changes.map(|change| change.timestamp().as_second()).find(|change| self.is_change(*change))
    }

    /// Some entries of the database change a zone's abbreviation alone.
    fn is_change(&self, at: i64) -> bool {
        let offset = |at| Timestamp::from_second(at).map(|at| self.time_zone.to_offset(at));
        !matches!((offset(at - 1), offset(at)), (Ok(before), Ok(after)) if before == after)
    }
}
