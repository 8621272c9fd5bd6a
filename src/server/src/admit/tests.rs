use super::*;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Map, Value, json};

/// A request with every limit.
fn request() -> Value {
    let digest = |number: u8| format!("{number:032x}");
    let charge = |policy: &str, limit: &str, numbers: Value| json!({"policy": policy, "key": digest(1), "group": digest(2), "cost": 1, limit: numbers});
    let bucket = json!({"capacity": 10, "refill": 1, "per_us": 1_000_000});
    let window = json!({"capacity": 10, "window_us": 60_000_000});
    json!({"decisions": [
        {"charges": [charge("a", "token_bucket", bucket.clone()), charge("b", "gcra", bucket)]},
        {"charges": [charge("a", "fixed_window", window.clone()), charge("b", "sliding_window", window.clone())]},
        {"charges": [charge("a", "sliding_log", window)]},
    ]})
}

/// One change to one value of a request.
#[derive(Clone, Debug)]
enum Edit {
    Replace(Value),
    Remove(Index),
    Add(String, Value),
    Rename(Index, String),
    Repeat(Index, usize),
}

fn name() -> impl Strategy<Value = String> {
    let known = ["decisions", "charges", "policy", "key", "cost", "token_bucket", "gcra", "capacity", "per_us"];
    prop_oneof![select(known.to_vec()).prop_map(String::from), ".{0,8}"]
}

fn value() -> impl Strategy<Value = Value> {
    let number = prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (-2..20_i64).prop_map(Value::from),
        (0..2000_u16).prop_map(|number| Value::from(f64::from(number))),
    ];
    let leaf = prop_oneof![Just(Value::Null), any::<bool>().prop_map(Value::from), number, ".*".prop_map(Value::from)];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map(name(), inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        value().prop_map(Edit::Replace),
        any::<Index>().prop_map(Edit::Remove),
        (name(), value()).prop_map(|(name, value)| Edit::Add(name, value)),
        (any::<Index>(), name()).prop_map(|(index, name)| Edit::Rename(index, name)),
        (any::<Index>(), 1..130_usize).prop_map(|(index, times)| Edit::Repeat(index, times)),
    ]
}

/// Every value in it, as pointers.
fn places(value: &Value, here: &str, places: &mut Vec<String>) {
    places.push(here.into());
    match value {
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, item)| self::places(item, &format!("{here}/{index}"), places));
        }
        // A name that a pointer would have to escape is none that means anything.
        Value::Object(map) => map
            .iter()
            .filter(|(name, _)| !name.contains(['/', '~']))
            .for_each(|(name, item)| self::places(item, &format!("{here}/{name}"), places)),
        _ => {}
    }
}

fn key(map: &Map<String, Value>, index: &Index) -> String {
    map.keys().nth(index.index(map.len())).cloned().unwrap_or_default()
}

fn apply(request: &mut Value, place: &Index, edit: Edit) {
    let mut all = Vec::new();
    places(request, "", &mut all);
    let Some(value) = request.pointer_mut(place.get(&all[..]).as_str()) else { return };
    match (edit, value) {
        (Edit::Replace(new), value) => *value = new,
        (Edit::Remove(index), Value::Array(items)) if !items.is_empty() => drop(items.remove(index.index(items.len()))),
        (Edit::Remove(index), Value::Object(map)) if !map.is_empty() => {
            map.remove(&key(map, &index));
        }
        (Edit::Add(_, new), Value::Array(items)) => items.push(new),
        (Edit::Add(name, new), Value::Object(map)) => drop(map.insert(name, new)),
        (Edit::Rename(index, new), Value::Object(map)) if !map.is_empty() => {
            if let Some(value) = map.remove(&key(map, &index)) {
                map.insert(new, value);
            }
        }
        (Edit::Repeat(index, times), Value::Array(items)) if !items.is_empty() => {
            let item = index.get(&items[..]).clone();
            items.extend(std::iter::repeat_n(item, times));
        }
        _ => {}
    }
}

proptest! {
    #[test]
    fn what_is_not_quite_a_request_is_taken_within_the_bounds_or_refused_by_its_field(
        edits in vec((any::<Index>(), edit()), 1..4),
    ) {
        let mut changed = request();
        for (place, edit) in edits {
            apply(&mut changed, &place, edit);
        }
        match parse(changed.to_string().as_bytes()) {
            Ok(request) => {
                prop_assert!((1..=MAX_DECISIONS).contains(&request.decisions.len()));
                for decision in &request.decisions {
                    prop_assert!((1..=MAX_CHARGES).contains(&decision.charges.len()));
                    prop_assert!(decision.charges.iter().all(|charge| is_name(&charge.policy)));
                }
                // The types of the numbers have the bounds of the numbers, and are read again within them.
                prop_assert_eq!(parse(&serde_json::to_vec(&request).unwrap()), Ok(request));
            }
            Err(error) => {
                prop_assert!(error.starts_with("decisions") || error.contains("`decisions`"), "{} for {}", error, changed);
            }
        }
    }

    #[test]
    fn bytes_that_are_no_request_are_refused(body in vec(any::<u8>(), 0..300), cut in any::<Index>()) {
        prop_assert!(parse(&body).is_err());
        let whole = request().to_string();
        let mut broken = whole.clone().into_bytes();
        broken.truncate(cut.index(whole.len()));
        prop_assert!(parse(&broken).is_err());
        broken.extend(&body);
        let _ = parse(&broken);
    }
}

#[test]
fn the_request_that_is_changed_is_one() {
    assert_eq!(parse(request().to_string().as_bytes()).unwrap().decisions.len(), 3);
}
