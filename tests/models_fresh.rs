//! The committed models are what the generator writes, byte by byte.

#[path = "../examples/zoo/mod.rs"]
mod zoo;

use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn committed_models_are_what_make_models_writes() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    let mut made = BTreeSet::new();
    for (name, bytes) in zoo::models() {
        let file = zoo::file(&models, name);
        let committed = std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        assert!(committed == bytes, "{} is not what `cargo run --example make_models` writes", file.display());
        made.insert(name.to_string());
    }
    let folders: BTreeSet<String> = std::fs::read_dir(&models)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    assert_eq!(folders, made, "every folder of models/ is one that make_models writes");
}
