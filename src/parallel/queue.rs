//! A queue of tasks that several threads run together.

use std::sync::Mutex;
use tract_core::internal::*;

/// Tasks that threads take one by one.
pub(super) struct Queue<'a, T> {
    /// The remaining tasks of each thread.
    left: Mutex<Vec<std::slice::IterMut<'a, T>>>,
    failed: Mutex<Option<TractError>>,
}

impl<'a, T> Queue<'a, T> {
    /// Splits the tasks into parts of about equal size, one per thread.
    pub fn new(tasks: &'a mut [T], threads: usize) -> Self {
        let of_thread = tasks.len().div_ceil(threads).max(1);
        let mut left: Vec<_> = tasks.chunks_mut(of_thread).map(|tasks| tasks.iter_mut()).collect();
        left.resize_with(threads, Default::default);
        Queue { left: Mutex::new(left), failed: Mutex::new(None) }
    }

    /// Takes the next task for a thread. None if no task is left or another thread has failed.
    fn next(&self, thread: usize) -> Option<&'a mut T> {
        let mut left = self.left.lock().ok()?;
        let own = left.get_mut(thread)?.next();
        own.or_else(|| left.iter_mut().max_by_key(|tasks| tasks.len())?.next_back())
    }

    /// Runs tasks until none is left.
    pub fn work(&self, thread: usize, run: &dyn Fn(&mut T) -> TractResult<()>) {
        while let Some(task) = self.next(thread) {
            if let Err(error) = run(task) {
                if let Ok(mut left) = self.left.lock() {
                    left.clear();
                }
                if let Ok(mut failed) = self.failed.lock() {
                    failed.get_or_insert(error);
                }
            }
        }
    }

    /// Returns the first error, if there was one.
    pub fn outcome(self) -> TractResult<()> {
        match self.failed.into_inner() {
            Ok(None) => Ok(()),
            Ok(Some(error)) => Err(error),
            Err(_) => bail!("threads: one that had failed panicked"),
        }
    }
}
