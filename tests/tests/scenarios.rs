//! `tests/README.md` names tests that are there.

use std::path::Path;

fn sources(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            sources(&entry, text);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(entry).expect("text"));
        }
    }
}

#[test]
fn every_fault_that_is_listed_has_its_tests() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    for folder in ["tests", "../src/core/src", "../src/filter/src", "../src/server/src"] {
        sources(&tests.join(folder), &mut text);
    }
    let readme = std::fs::read_to_string(tests.join("README.md")).expect("the README");
    let rows: Vec<&str> = readme.lines().filter(|line| line.starts_with("| F")).collect();
    assert!(rows.len() > 50);
    for row in rows {
        let names: Vec<&str> = row.split('`').skip(1).step_by(2).filter(|name| name.contains('_')).collect();
        let is_missing = |name: &&str| !text.contains(&format!("fn {name}("));
        let missing: Vec<&str> = names.iter().copied().filter(is_missing).collect();
        assert!(missing.iter().all(|name| *name == "FAIL_RELOAD"), "{missing:?} of {row}");
        assert!(!names.is_empty() || row.contains("None: "), "{row}");
    }
}
