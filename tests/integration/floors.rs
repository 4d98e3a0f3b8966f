//! Checks the map of CONTRIBUTING.md against the sources.
//!
//! Each file may use files of its own floor or of lower ones only, and files must not use each
//! other in a cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Returns the files or folders of each floor, the top floor first.
fn floors() -> Vec<(String, Vec<String>)> {
    let text = std::fs::read_to_string(Path::new(ROOT).join("CONTRIBUTING.md")).expect("CONTRIBUTING.md");
    let table =
        text.split("<!-- floors").nth(1).and_then(|rest| rest.split("<!-- end of floors").next()).expect("the table");
    let rows = table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| floor "));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let files = cells[2].split('`').filter(|word| word.starts_with("src/")).map(str::to_string).collect();
        (cells[1].to_string(), files)
    })
    .collect()
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// Returns whether a module exists in tests only. Such modules are not on the map.
fn is_of_tests(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or(file);
    ["testing.rs", "tests.rs", "fuzz.rs", "readme.rs", "guard_page_tests.rs"].contains(&name)
}

/// Returns the module paths (without `crate`) and their files, relative to the repository.
fn modules() -> BTreeMap<String, String> {
    let mut files = vec![];
    sources(&Path::new(ROOT).join("src"), &mut files);
    let relative = |path: &PathBuf| path.strip_prefix(ROOT).expect("inside").to_string_lossy().replace('\\', "/");
    let files = files.iter().map(relative).filter(|file| !file.starts_with("src/bin/") && !is_of_tests(file));
    files
        .map(|file| {
            let module =
                file.trim_start_matches("src/").trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::");
            (if module == "lib" { String::new() } else { module }, file)
        })
        .collect()
}

/// Returns the paths `crate::…` of a file, with groups in braces split.
///
/// Tests, comments and visibility declarations do not count.
fn paths(text: &str) -> Vec<String> {
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or(text);
    let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let mut found = vec![];
    for rest in code.split("crate::").skip(1) {
        let head: String = rest.chars().take_while(|c| c.is_alphanumeric() || "_:".contains(*c)).collect();
        let head = head.trim_end_matches(':').to_string();
        match rest[head.len()..].strip_prefix("::{") {
            Some(group) => {
                let group = group.split('}').next().unwrap_or_default();
                found.extend(group.split(',').map(|name| format!("{head}::{}", name.trim())));
            }
            None => found.push(head),
        }
    }
    found
}

/// Returns the file whose module is the longest prefix of a path.
fn file_of<'a>(path: &str, modules: &'a BTreeMap<String, String>) -> Option<&'a String> {
    let mut path = path;
    loop {
        if let Some(file) = modules.get(path) {
            return Some(file);
        }
        path = &path[..path.rfind("::")?];
    }
}

fn uses() -> BTreeMap<String, BTreeSet<String>> {
    let modules = modules();
    let of = |file: &String| {
        let text = std::fs::read_to_string(Path::new(ROOT).join(file)).expect("a readable source");
        let used =
            paths(&text).into_iter().filter_map(|path| file_of(&path, &modules)).filter(|used| *used != file).cloned();
        (file.clone(), used.collect())
    };
    modules.values().map(of).collect()
}

#[test]
fn each_floor_uses_lower_ones() {
    let floors = floors();
    let floor = |file: &str| {
        let stands = |place: &String| file == place || place.ends_with('/') && file.starts_with(place.as_str());
        // A file that is named itself belongs to that floor, not to the floor of its folder.
        let named = floors.iter().position(|(_, places)| places.iter().any(|place| place == file));
        named.or_else(|| floors.iter().position(|(_, places)| places.iter().any(stands)))
    };
    let mut wrong = vec![];
    for (file, used) in uses() {
        let Some(own) = floor(&file) else {
            wrong.push(format!("{file} stands on no floor"));
            continue;
        };
        for used in used.iter().filter(|used| *used != "src/lib.rs") {
            if floor(used).is_some_and(|other| other < own) {
                let names = [own, floor(used).unwrap_or(own)].map(|at| floors[at].0.as_str());
                wrong.push(format!("{file} ({}) uses {used} ({}) above it", names[0], names[1]));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_files_use_each_other() {
    let mut left = uses();
    // Re-exports of the crate's root do not count as uses.
    left.remove("src/lib.rs");
    // Removes files that use no remaining file, until none are left, or only cycles and their
    // users.
    loop {
        let names: BTreeSet<String> = left.keys().cloned().collect();
        let free: Vec<String> =
            left.iter().filter(|(_, used)| used.is_disjoint(&names)).map(|(file, _)| file.clone()).collect();
        if free.is_empty() {
            break;
        }
        free.iter().for_each(|file| drop(left.remove(file)));
    }
    // A file that no remaining file uses is in no cycle.
    loop {
        let used: BTreeSet<String> = left.values().flatten().cloned().collect();
        let top: Vec<String> = left.keys().filter(|file| !used.contains(*file)).cloned().collect();
        if top.is_empty() {
            break;
        }
        top.iter().for_each(|file| drop(left.remove(file)));
    }
    assert!(left.is_empty(), "circles among {:?}", left.keys().collect::<Vec<_>>());
}

#[test]
fn the_map_names_files_that_exist() {
    for (floor, places) in floors() {
        assert!(!places.is_empty(), "{floor}: no file");
        for place in places {
            assert!(Path::new(ROOT).join(&place).exists(), "{floor}: {place} does not exist");
        }
    }
}

#[test]
fn no_algorithm_uses_another() {
    let list = std::fs::read_to_string(Path::new(ROOT).join("src/algorithm/mod.rs")).expect("the list of algorithms");
    let (_, list) = list.split_once("\nalgorithms! {").expect("the list of algorithms");
    let names = list.lines().filter_map(|line| Some(line.split_once("\": ")?.1.trim_end_matches(';')));
    let paths: Vec<String> = names.map(|name| format!("src/algorithm/{name}")).collect();
    assert!(paths.len() >= 10, "{paths:?}");
    let algorithm = |file: &str| {
        paths.iter().find(|path| {
            file.strip_prefix(path.as_str()).is_some_and(|rest| [".rs", "/"].iter().any(|end| rest.starts_with(end)))
        })
    };
    for (file, used) in uses() {
        let Some(own) = algorithm(&file) else { continue };
        for other in used.iter().filter_map(|used| algorithm(used)) {
            assert_eq!(own, other, "{file}");
        }
    }
}
