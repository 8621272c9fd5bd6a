use super::*;

const SECOND: u64 = 1_000_000;

fn at(text: &str) -> i64 {
    text.parse::<Timestamp>().unwrap().as_second()
}

fn named(name: &str) -> Arc<Zone> {
    zone(&ZoneName::new(name).unwrap()).unwrap_or_else(|| panic!("no zone {name}"))
}

/// All windows that lie between two moments of which each is a boundary: where they begin, and how long they are.
fn windows(zone: &str, unit: CalendarUnit, from: &str, to: &str) -> Vec<(i64, i64)> {
    let (zone, mut start, to) = (named(zone), at(from), at(to));
    let mut found = Vec::new();
    while start < to {
        let (begins, ends) = zone.window(unit, start).unwrap();
        assert_eq!(begins, start, "one begins where another ends");
        assert_eq!(zone.window(unit, ends - 1), Some((begins, ends)), "and lasts as long as it says");
        found.push((begins, ends - begins));
        start = ends;
    }
    assert_eq!(start, to, "a boundary");
    found
}

fn hours_of(zone: &str, unit: CalendarUnit, from: &str, to: &str) -> Vec<f64> {
    windows(zone, unit, from, to).into_iter().map(|(_, seconds)| seconds as f64 / 3600.0).collect()
}

#[test]
fn a_day_is_as_long_as_the_local_clock_makes_it() {
    use CalendarUnit::Day;
    for (zone, from, to, hours) in [
        ("UTC", "2026-12-30T00:00Z", "2027-01-02T00:00Z", vec![24.0; 3]),
        ("Europe/Berlin", "2026-03-27T23:00Z", "2026-03-30T22:00Z", vec![24.0, 23.0, 24.0]),
        ("Europe/Berlin", "2026-10-23T22:00Z", "2026-10-26T23:00Z", vec![24.0, 25.0, 24.0]),
        // Half an hour of summer time.
        ("Australia/Lord_Howe", "2026-10-02T13:30Z", "2026-10-05T13:00Z", vec![24.0, 23.5, 24.0]),
        ("Australia/Lord_Howe", "2026-04-03T13:00Z", "2026-04-06T13:30Z", vec![24.0, 24.5, 24.0]),
        // The clock is changed at midnight: from 0:00 to 1:00, and from 24:00 back to 23:00.
        ("America/Santiago", "2026-09-05T04:00Z", "2026-09-08T03:00Z", vec![24.0, 23.0, 24.0]),
        ("America/Santiago", "2026-04-03T03:00Z", "2026-04-06T04:00Z", vec![24.0, 25.0, 24.0]),
        // From 23:30 to 0:30: no clock showed midnight.
        ("America/Toronto", "1919-03-29T05:00Z", "1919-04-01T04:00Z", vec![24.0, 23.5, 23.5]),
        // From 0:01 back to 23:01: the day of before is shown again when the next has begun.
        ("America/St_Johns", "2010-11-05T02:30Z", "2010-11-08T03:30Z", vec![24.0, 24.0, 25.0]),
        // The Friday that was left out.
        ("Pacific/Apia", "2011-12-28T10:00Z", "2012-01-01T10:00Z", vec![24.0; 4]),
        ("Pacific/Kiritimati", "2026-12-30T10:00Z", "2027-01-01T10:00Z", vec![24.0; 2]),
        ("Etc/GMT+12", "2026-12-30T12:00Z", "2027-01-01T12:00Z", vec![24.0; 2]),
    ] {
        assert_eq!(hours_of(zone, Day, from, to), hours, "{zone} from {from}");
    }
}

#[test]
fn a_month_begins_with_its_first_day() {
    let days = |zone, from, to| -> Vec<f64> {
        hours_of(zone, CalendarUnit::Month, from, to).into_iter().map(|hours| hours / 24.0).collect()
    };
    let common = [31.0, 28.0, 31.0, 30.0, 31.0, 30.0, 31.0, 31.0, 30.0, 31.0, 30.0, 31.0];
    assert_eq!(days("UTC", "2027-01-01T00:00Z", "2028-01-01T00:00Z"), common);
    assert_eq!(days("Pacific/Kiritimati", "2026-12-31T10:00Z", "2027-12-31T10:00Z"), common);
    assert_eq!(days("Etc/GMT+12", "2028-02-01T12:00Z", "2028-03-01T12:00Z"), [29.0]);
    let berlin = days("Europe/Berlin", "2026-02-28T23:00Z", "2026-10-31T23:00Z");
    assert_eq!(berlin, [31.0 - 1.0 / 24.0, 30.0, 31.0, 30.0, 31.0, 31.0, 30.0, 31.0 + 1.0 / 24.0]);
    // A December without its 30th.
    assert_eq!(days("Pacific/Apia", "2011-12-01T10:00Z", "2011-12-31T10:00Z"), [30.0]);
}

#[test]
fn an_hour_is_never_longer_than_an_hour() {
    use CalendarUnit::Hour;
    // Hours of the local clock, not of UTC.
    assert_eq!(hours_of("Asia/Kathmandu", Hour, "2026-12-01T00:15Z", "2026-12-01T02:15Z"), [1.0; 2]);
    // The hour that is left out, and the one that is shown twice.
    assert_eq!(hours_of("Europe/Berlin", Hour, "2026-03-29T00:00Z", "2026-03-29T03:00Z"), [1.0; 3]);
    assert_eq!(hours_of("Europe/Berlin", Hour, "2026-10-24T23:00Z", "2026-10-25T03:00Z"), [1.0; 4]);
    // From 2:00 to 2:30, and from 2:00 back to 1:30: half an hour by itself.
    let lord_howe = |from, to| hours_of("Australia/Lord_Howe", Hour, from, to);
    assert_eq!(lord_howe("2026-10-03T14:30Z", "2026-10-03T17:00Z"), [1.0, 0.5, 1.0]);
    assert_eq!(lord_howe("2026-04-04T14:00Z", "2026-04-04T16:30Z"), [1.0, 0.5, 1.0]);
    let minutes = windows("Australia/Lord_Howe", CalendarUnit::Minute, "2026-04-04T14:30Z", "2026-04-04T15:30Z");
    assert!(minutes.len() == 60 && minutes.iter().all(|(_, seconds)| *seconds == 60));
}

/// In every zone there is, at any time from 2000 to 2040, and whatever the boundaries were found by: they are where the
/// local date changes.
#[test]
fn in_every_zone_three_windows_in_a_row_are_around_every_moment() {
    let span = u64::try_from(at("2040-01-01T00:00Z") - at("2000-01-01T00:00Z")).unwrap();
    let mut random = 0x2026_1202_u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 20
    };
    for name in DATABASE.available() {
        let name = name.to_string();
        let zone = named(&name);
        for (word, unit) in CalendarUnit::WORDS {
            let longest = [60, 3600, 26 * 3600, 32 * 86_400][unit as usize];
            for _ in 0..20 {
                let now = Micros::new((u64::try_from(at("2000-01-01T00:00Z")).unwrap() + next() % span) * SECOND + 7);
                let known = zone.look_up(unit, now).unwrap_or_else(|| panic!("{name} {word} {now}"));
                assert!(known.are_around(now), "{name} {word} {now}: {known:?}");
                let [before, start, end, after] = known.all();
                for (from, to) in [(before, start), (start, end), (end, after)] {
                    let length = to.since(from).count() / SECOND;
                    assert!((1..=longest).contains(&length), "{name} {word} {now}: {known:?}");
                }
                assert_eq!(zone.look_up(unit, end).unwrap().all()[..3], known.all()[1..], "{name} {word} {now}");
                let show = |at: Micros| {
                    let at = Timestamp::from_microsecond(i64::try_from(at.count()).unwrap()).unwrap();
                    zone.time_zone.to_datetime(at)
                };
                let (last, first) = (show(Micros::new(end.count() - 1)), show(end));
                match unit {
                    CalendarUnit::Minute | CalendarUnit::Hour => {}
                    CalendarUnit::Day => assert!(last.date() != first.date(), "{name} {word} {now}"),
                    CalendarUnit::Month => assert!(last.month() != first.month(), "{name} {word} {now}"),
                }
            }
        }
    }
}

#[test]
fn what_was_looked_up_holds_until_its_window_ends() {
    let zone = named("Europe/Berlin");
    for text in ["2026-03-28T22:59:59Z", "2026-03-28T23:00Z", "2026-03-29T21:59:59Z", "2026-03-29T22:00Z"] {
        let now = Micros::from_secs(u64::try_from(at(text)).unwrap());
        for _ in 0..2 {
            assert_eq!(zone.boundaries(CalendarUnit::Day, now), zone.look_up(CalendarUnit::Day, now), "{text}");
        }
    }
}

#[test]
fn times_at_the_edges_have_windows_or_none_but_no_wrong_ones() {
    for name in ["UTC", "Pacific/Kiritimati", "Etc/GMT+12"] {
        for (_, unit) in CalendarUnit::WORDS {
            for now in [0, 1, 86_400 * SECOND, Micros::MAX.count() - 1, Micros::MAX.count()].map(Micros::new) {
                let known = named(name).look_up(unit, now).expect("boundaries");
                assert!(known.window(now).is_some() || now == Micros::MAX, "{name} {unit:?} {now}");
            }
        }
    }
}

#[test]
fn a_zone_that_there_is_not_is_refused_with_the_one_that_was_meant() {
    let refusal = |name: &str| check(&ZoneName::new(name).unwrap()).unwrap_err();
    for (name, meant) in [
        ("Europe/Berln", "Europe/Berlin"),
        ("europe/berlin", "Europe/Berlin"),
        ("utc", "UTC"),
        ("Kathmandu", "Asia/Kathmandu"),
        ("America/NewYork", "America/New_York"),
    ] {
        assert_eq!(refusal(name), format!("unknown time zone {name:?}: did you mean {meant:?}?"));
    }
    for name in ["Etc/Unknown", "Moon/Tranquility", "zzzzzzzzzzzzzzzzzzzz"] {
        let found = refusal(name);
        assert!(found.ends_with("write one of the IANA database, such as Europe/Berlin or UTC"), "{found}");
    }
    let kept = ZONES.read().unwrap().len();
    assert!(kept <= DATABASE.available().count(), "what is refused is not kept");
}
