//! Runs a target on seeded random bytes, on any toolchain, or on the files of a folder.
//!
//! ```sh
//! cargo run --release -- models 1000000          # from seed 0
//! cargo run --release -- legal 10000000 77       # from another seed
//! cargo run --release -- seeds corpus/models     # the seeds of coverage-guided fuzzing
//! ```

use cpu_time::ProcessTime;
use std::time::{Duration, Instant};
use tract_deconv_fuzz::{Outcome, Random, legal, models, mutated, nearly_legal, seeds};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let usage = || -> ! {
        eprintln!("usage: drive models|legal|nearly_legal EXECUTIONS [SEED], or drive seeds FOLDER");
        std::process::exit(2)
    };
    let [target, rest @ ..] = &*arguments else { usage() };
    if let ("seeds", [folder]) = (&**target, rest) {
        std::fs::create_dir_all(folder).expect("a folder");
        for (ix, seed) in seeds().iter().enumerate() {
            std::fs::write(format!("{folder}/seed{ix:02}"), seed).expect("a file");
        }
        return;
    }
    let numbers: Vec<u64> = rest.iter().map(|n| n.parse().unwrap_or_else(|_| usage())).collect();
    let (executions, seed) = match *numbers {
        [executions] => (executions, 0),
        [executions, seed] => (executions, seed),
        _ => usage(),
    };
    let seeds = seeds();
    let run = |random: &mut Random| match &**target {
        "models" => models(&mutated(&seeds, random)),
        "legal" => legal(&random.bytes(96)).0,
        "nearly_legal" => nearly_legal(&random.bytes(112)),
        _ => usage(),
    };
    let begin = Instant::now();
    let mut slowest = (Duration::ZERO, 0);
    let mut counts = [0u64; 4];
    for execution in 0..executions {
        // Each execution can be repeated on its own.
        let mut random = Random(seed.wrapping_add(execution).wrapping_mul(0x2545_f491_4f6c_dd1d));
        let started = ProcessTime::now();
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&mut random)));
        let Ok(outcome) = found else {
            eprintln!("{target}: a find, again by: drive {target} 1 {}", seed.wrapping_add(execution));
            std::process::exit(1);
        };
        slowest = slowest.max((started.elapsed(), seed.wrapping_add(execution)));
        counts[match outcome {
            Outcome::Skipped => 0,
            Outcome::Refused => 1,
            Outcome::Accepted => 2,
            Outcome::Ran => 3,
        }] += 1;
        if (execution + 1) % 100_000 == 0 || execution + 1 == executions {
            let [skipped, refused, accepted, ran] = counts;
            println!(
                "{target}: {} executions from seed {seed}: {skipped} skipped, {refused} refused, {accepted} accepted, {ran} run; {} s, the slowest {} ms (seed {})",
                execution + 1,
                begin.elapsed().as_secs(),
                slowest.0.as_millis(),
                slowest.1
            );
        }
    }
}
