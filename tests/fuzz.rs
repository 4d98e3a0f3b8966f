//! A short run of each fuzz target on fixed bytes, and the inputs that fuzzing once found.

#[path = "../fuzz/src/lib.rs"]
mod fuzz;

use fuzz::{Outcome, Random, legal, models, mutated, nearly_legal, seeds};
use std::cell::RefCell;
use tract_deconv::Strategy;

/// Runs a target on seeded bytes. Enough of the inputs must be accepted.
fn smoke(what: &str, executions: u64, run: impl Fn(&mut Random) -> Outcome) {
    let outcomes: Vec<Outcome> = (0..executions).map(|seed| run(&mut Random(seed))).collect();
    let count = |wanted: Outcome| outcomes.iter().filter(|outcome| **outcome == wanted).count();
    let [ran, refused, skipped] = [Outcome::Ran, Outcome::Refused, Outcome::Skipped].map(count);
    eprintln!("fuzz: {what}: {executions} executions, {ran} run, {refused} refused, {skipped} skipped");
    assert!(ran >= executions as usize / 20, "{what}: only {ran} of {executions} were run");
}

#[test]
fn legal_specs() {
    let reached = RefCell::new(vec![]);
    smoke("legal", 2000, |random| {
        let (outcome, strategies) = legal(&random.bytes(96));
        reached.borrow_mut().extend(strategies);
        outcome
    });
    for strategy in Strategy::ALL.iter().copied() {
        let count = reached.borrow().iter().filter(|reached| **reached == strategy).count();
        eprintln!("fuzz: legal: {strategy} ran {count} times");
        assert!(count >= 20 || !strategy.is_available(), "{strategy} ran only {count} times");
    }
}

#[test]
fn nearly_legal_specs() {
    smoke("nearly_legal", 4000, |random| nearly_legal(&random.bytes(112)));
}

#[test]
fn model_files() {
    let seeds = seeds();
    for (ix, seed) in seeds.iter().enumerate() {
        assert_eq!(models(seed), Outcome::Ran, "seed {ix}");
    }
    smoke("models", 1500, |random| models(&mutated(&seeds, random)));
}
