//! Whole runs with every allocation next to an inaccessible page: tensors, packed filters and
//! scratch memory. Freed memory is inaccessible, too.
//!
//! A global allocator does this, on the threads that ask for it. Inputs and biases have the
//! alignment of their elements, so they end where the page begins. Tensors that tract aligns to
//! vectors end at most 63 bytes before it.
#![cfg(target_os = "linux")]

#[allow(dead_code, unused_imports)]
#[path = "../fuzz/src/lib.rs"]
mod fuzz;

use fuzz::{Outcome, Random, legal};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use tract_deconv::Strategy;

/// The side on which a thread's allocations touch an inaccessible page. There is one on the other
/// side too.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Side {
    Before,
    After,
}

thread_local!(static FENCED: Cell<Option<Side>> = const { Cell::new(None) });

/// The size of the address range. Each address is handed out once, with inaccessible pages in
/// between. It takes no memory before blocks are allocated.
const ARENA: usize = 1 << 40;

struct Arena {
    begin: usize,
    next: AtomicUsize,
    page: usize,
}

fn arena() -> &'static Arena {
    static THE: OnceLock<Arena> = OnceLock::new();
    THE.get_or_init(|| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the mapping is new and has no access rights, and `sysconf` only returns a number.
        let (map, page) = unsafe {
            (
                libc::mmap(std::ptr::null_mut(), ARENA, libc::PROT_NONE, flags, -1, 0),
                libc::sysconf(libc::_SC_PAGESIZE) as usize,
            )
        };
        assert_ne!(map, libc::MAP_FAILED, "no address space for an arena");
        Arena { begin: map as usize, next: AtomicUsize::new(map as usize + page), page }
    })
}

struct Fences;

// SAFETY: each block comes from the system's allocator, or is a part of the arena that is made
// accessible and aligned as requested. `next` only grows, so these parts are disjoint.
unsafe impl GlobalAlloc for Fences {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(side) = FENCED.get().filter(|_| layout.size() > 0) else {
            // SAFETY: the caller upholds the contract of `alloc`, which is the system allocator's
            // too.
            return unsafe { System.alloc(layout) };
        };
        let arena = arena();
        let room = layout.size().next_multiple_of(arena.page);
        let at = arena.next.fetch_add(room + arena.page, Ordering::Relaxed);
        assert!(at + room < arena.begin + ARENA && layout.align() <= arena.page, "the arena is used up");
        // SAFETY: these pages belong to the arena and are handed out for the first time.
        let made = unsafe { libc::mprotect(at as *mut libc::c_void, room, libc::PROT_READ | libc::PROT_WRITE) };
        match (made, side) {
            (0, Side::Before) => at as *mut u8,
            (0, Side::After) => ((at + room - layout.size()) & !(layout.align() - 1)) as *mut u8,
            _ => std::ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        let arena = arena();
        if !(arena.begin..arena.begin + ARENA).contains(&(pointer as usize)) {
            // SAFETY: the caller upholds the contract of `dealloc`, and the block is outside the
            // arena, so it came from the system's allocator.
            return unsafe { System.dealloc(pointer, layout) };
        }
        let at = (pointer as usize & !(arena.page - 1)) as *mut libc::c_void;
        let room = layout.size().next_multiple_of(arena.page);
        // SAFETY: `alloc` made these pages accessible for this block alone. The block's first byte
        // lies in the first of them, and the caller no longer uses the block.
        unsafe {
            libc::madvise(at, room, libc::MADV_DONTNEED);
            libc::mprotect(at, room, libc::PROT_NONE);
        }
    }
}

#[global_allocator]
static ALLOCATOR: Fences = Fences;

/// Runs a job with fences, on a new thread so that its scratch memory is new.
fn fenced<T: Send>(side: Side, job: impl FnOnce() -> T + Send) -> T {
    arena();
    let job = || {
        FENCED.set(Some(side));
        let result = job();
        FENCED.set(None);
        result
    };
    std::thread::scope(|scope| scope.spawn(job).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[test]
fn legal_specs_stay_inside() {
    let mut ran = [0; Strategy::ALL.len()];
    for seed in 0..1000 {
        let side = if seed % 2 == 0 { Side::After } else { Side::Before };
        // These seeds differ from those of the fuzz targets' short runs.
        let (outcome, strategies) = fenced(side, || legal(&Random(1 << 32 | seed).bytes(96)));
        assert!(matches!(outcome, Outcome::Ran | Outcome::Accepted));
        strategies.iter().for_each(|strategy| ran[*strategy as usize] += 1);
    }
    for (strategy, ran) in Strategy::ALL.iter().copied().zip(ran) {
        let _ = writeln!(std::io::stderr(), "guard pages: {strategy} ran {ran} times");
        assert!(ran >= 20 || !strategy.is_available(), "{strategy} ran only {ran} times");
    }
}

/// Checks that the fences do fault, without which the other test would prove nothing.
#[test]
fn allocations_are_fenced() {
    for (side, offset) in [(Side::Before, -1), (Side::After, 5), (Side::Before, 0), (Side::After, 4)] {
        let block = fenced(side, || vec![1f32; 5]);
        // SAFETY: the child only reads one element, which is inside the block or faults, and then
        // exits at once.
        let status = unsafe {
            let child = libc::fork();
            assert!(child >= 0, "no process can be made");
            if child == 0 {
                libc::signal(libc::SIGSEGV, libc::SIG_DFL);
                std::hint::black_box(block.as_ptr().offset(offset).read_volatile());
                libc::_exit(0);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            status
        };
        let faulted = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV;
        assert_eq!(faulted, !(0..5).contains(&offset), "{side:?}, element {offset}");
    }
}
