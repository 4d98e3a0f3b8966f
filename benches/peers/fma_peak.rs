//! The peak throughput of the cores: independent chains of fused multiply-adds that stay in
//! registers.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// The number of chains: above latency × units (4 × 2 on current cores), below the 16 registers of
/// AVX2.
const CHAINS: usize = 12;
const STEPS: usize = 20_000;

/// Returns the floating-point operations per second (two per multiply-add) of `threads` threads
/// that run together for `time`.
pub fn measure(threads: usize, time: Duration) -> f64 {
    let (steps, lanes) = widest();
    let start_line = Barrier::new(threads);
    let rates = std::thread::scope(|scope| {
        let runs = (0..threads).map(|_| {
            scope.spawn(|| {
                start_line.wait();
                let start = Instant::now();
                let mut calls = 0;
                while start.elapsed() < time {
                    steps(black_box(0.5));
                    calls += 1;
                }
                (calls * 2 * STEPS * CHAINS * lanes) as f64 / start.elapsed().as_secs_f64()
            })
        });
        // All threads must be spawned before the first is joined, or the barrier never opens.
        let runs: Vec<_> = runs.collect();
        runs.into_iter().map(|run| run.join().unwrap_or(0.0)).collect::<Vec<f64>>()
    });
    rates.iter().sum()
}

/// Returns the widest loop that this CPU runs, and its number of lanes.
fn widest() -> (fn(f32), usize) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the CPU has AVX-512F.
            return (|x| unsafe { x86::avx512(x) }, 16);
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the CPU has AVX2 and FMA.
            return (|x| unsafe { x86::avx2(x) }, 8);
        }
    }
    (portable, 4)
}

/// A loop that the compiler vectorises for the target's baseline. It fuses the multiply-add only if
/// the baseline can.
fn portable(x: f32) {
    let mut sums = [[x; 4]; CHAINS];
    for _ in 0..STEPS {
        for lane in sums.as_flattened_mut() {
            *lane = if cfg!(target_arch = "aarch64") { lane.mul_add(x, x) } else { *lane * x + x };
        }
    }
    black_box(sums);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{CHAINS, STEPS};
    use std::arch::x86_64::*;
    use std::hint::black_box;

    #[target_feature(enable = "avx512f")]
    pub fn avx512(x: f32) {
        let x = _mm512_set1_ps(x);
        let mut sums = [x; CHAINS];
        for _ in 0..STEPS {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, x, x);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2,fma")]
    pub fn avx2(x: f32) {
        let x = _mm256_set1_ps(x);
        let mut sums = [x; CHAINS];
        for _ in 0..STEPS {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, x, x);
            }
        }
        black_box(sums);
    }
}
