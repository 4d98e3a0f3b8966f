//! The committed models are byte for byte the output of the generator.

#[path = "../examples/zoo/mod.rs"]
mod zoo;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

#[test]
fn committed_models_are_what_make_models_writes() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    let mut made = BTreeSet::new();
    for (name, bytes) in zoo::models() {
        let file = zoo::file(&models, &name);
        let committed = std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        assert!(committed == bytes, "{} is not what `cargo run --example make_models` writes", file.display());
        made.insert(file);
    }
    assert_eq!(model_files(&models), made, "every model below models/ is one that make_models writes");
}

fn model_files(folder: &Path) -> BTreeSet<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let paths = entries.map(|entry| entry.expect("a readable entry").path());
    paths
        .flat_map(|path| if path.is_dir() { model_files(&path) } else { BTreeSet::from([path]) })
        .filter(|path| path.extension().is_some_and(|extension| extension == "onnx"))
        .collect()
}
