//! Compares the table "What the process notices" of the crate's documentation with the statics of
//! the source.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the sources") {
        let path = entry.expect("a readable entry").path();
        match path.is_dir() {
            true if path.ends_with("src/bin") => {}
            true => sources(&path, into),
            false => into.push(path),
        }
    }
}

/// Returns `file NAME` of each static that is not constant, except for those of unit tests.
fn statics(file: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    // Unit tests are in a module of their own at the end of a file.
    let end = lines
        .windows(2)
        .position(|pair| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{'));
    let mut found = vec![];
    for line in lines[..end.unwrap_or(lines.len())].iter().filter(|line| !line.trim_start().starts_with("//")) {
        let Some((before, after)) = line.split_once("static ") else { continue };
        let declares = before.is_empty() || before.ends_with([' ', '(']);
        let name = after.strip_prefix("mut ").unwrap_or(after).split(':').next().unwrap_or_default();
        let is_name =
            !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
        // These are tables of functions, which never change.
        if declares && is_name && !after.contains("Kernels<") {
            found.push(format!("{file} {name}"));
        }
    }
    found
}

#[test]
fn every_static_is_in_the_table() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = vec![];
    sources(&src, &mut files);
    let mut declared = BTreeSet::new();
    for file in files.iter().filter(|file| !file.ends_with("tests.rs")) {
        let name = file.strip_prefix(&src).expect("below src").to_string_lossy().replace('\\', "/");
        declared.extend(statics(&name, &std::fs::read_to_string(file).expect("a readable file")));
    }
    let (_, section) = include_str!("../src/lib.rs").split_once("//! # What the process notices").expect("the section");
    let rows =
        section.lines().skip_while(|line| !line.starts_with("//! |")).take_while(|line| line.starts_with("//! |"));
    let mut named = BTreeSet::new();
    for row in rows.skip(2) {
        let place = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        for of_file in place.split(';').map(str::trim).filter(|of_file| !of_file.is_empty()) {
            let mut words = of_file.split_whitespace().map(|word| word.trim_matches(['`', ',']));
            let file = words.next().expect("a file");
            named.extend(words.map(|name| format!("{file} {name}")));
        }
    }
    assert!(declared.len() > 5, "only {declared:?}");
    let missing: Vec<_> = declared.difference(&named).collect();
    let gone: Vec<_> = named.difference(&declared).collect();
    assert!(missing.is_empty() && gone.is_empty(), "not in the table: {missing:?}; no longer in the source: {gone:?}");
}

#[test]
fn statics_are_found_in_every_form() {
    let text =
        "static ONE: u8 = 0;\n    pub(crate) static TWO: Mutex<u8> = x;\n thread_local!(static THREE: u8 = 0);\n\
        // static FOUR: u8\nfn f(x: &'static STR) {}\n static K: Kernels<f32> = k;\n#[cfg(test)]\nfn
        // f() {}\n\
        static FIVE: u8 = 0;\n#[cfg(test)]\nmod tests {\n static SIX: u8 = 0;\n}\n";
    assert_eq!(statics("a.rs", text), ["a.rs ONE", "a.rs TWO", "a.rs THREE", "a.rs FIVE"]);
}
