//! Handles failures: usage errors, the printed chain of causes, panics of libraries, closed pipes.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::Mutex;
use tract_core::internal::*;

/// An error in the command line that shows only once the model is known. Its exit code is 2.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Makes a usage error with a formatted message.
macro_rules! usage {
    ($($arg:tt)*) => { anyhow::Error::new($crate::failure::Usage(format!($($arg)*))) };
}
pub(crate) use usage;

/// Returns the exit code of an error.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if error.chain().any(|cause| cause.is::<Usage>()) { 2 } else { 1 }
}

/// Returns the causes, outermost first, without those that only repeat an earlier one.
pub fn chain(error: &anyhow::Error) -> String {
    let mut lines: Vec<String> = vec![];
    for cause in error.chain() {
        let text = cause.to_string();
        let text = text.trim();
        if text.is_empty() || lines.iter().any(|line| line.contains(text)) {
            continue;
        }
        if let Some(last) = lines.last_mut().filter(|last| text.starts_with(last.as_str())) {
            *last = text.to_string();
        } else {
            lines.push(text.to_string());
        }
    }
    lines.join("\n  because: ")
}

static PANIC: Mutex<Option<String>> = Mutex::new(None);

/// Stops panics from printing. [`guarded`] turns them into errors.
pub fn hold_panics() {
    panic::set_hook(Box::new(|info| {
        let payload = info.payload();
        let message = payload
            .downcast_ref::<&str>()
            .map(|s| s.to_string())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".into());
        let place = info.location().map(|l| {
            let file = l.file().rsplit_once("/src/").map_or(l.file(), |(_, file)| file);
            format!(" ({file}:{})", l.line())
        });
        if let Ok(mut slot) = PANIC.lock() {
            *slot = Some(format!("{message}{}", place.unwrap_or_default()));
        }
    }));
}

/// Runs work that may panic and turns a panic into an error.
///
/// tract panics on some models that it cannot load.
pub fn guarded<T>(work: impl FnOnce() -> TractResult<T>) -> TractResult<T> {
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let message = PANIC.lock().ok().and_then(|mut slot| slot.take());
        Err(format_err!("panicked: {}", message.unwrap_or_else(|| "no message".into())))
    })
}

/// Checks that a file can be written, before the work that fills it.
pub fn check_writable(path: &Path) -> TractResult<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ensure!(folder.is_dir() && !path.is_dir(), "{}: can't be written, there is no such folder", path.display());
    let existed = path.exists();
    // append, so that an existing file keeps its content until the results are written
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.with_context(|| format!("{}: can't be written", path.display()))?;
    if !existed {
        std::fs::remove_file(path).with_context(|| format!("{}: can't be removed", path.display()))?;
    }
    Ok(())
}

/// Prints to the standard output.
///
/// A closed pipe (`| head`) is no failure: the work goes on, and its exit code stands.
pub fn say(text: impl fmt::Display) -> TractResult<()> {
    match writeln!(io::stdout().lock(), "{text}") {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done.context("writing to the standard output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_causes_are_printed_once() {
        let error =
            format_err!("strides: strides=[0]").context("node up: strides: strides=[0]").context("loading m.onnx");
        assert_eq!(chain(&error), "loading m.onnx\n  because: node up: strides: strides=[0]");
    }

    #[test]
    fn a_cause_that_says_more_replaces_the_shorter_one() {
        let error = format_err!("wrong shape: [1, 2]").context("wrong shape").context("running");
        assert_eq!(chain(&error), "running\n  because: wrong shape: [1, 2]");
    }

    #[test]
    fn usage_errors_keep_their_exit_code_under_context() {
        assert_eq!(exit_code(&usage!("set: symbol=Q").context("loading")), 2);
        assert_eq!(exit_code(&format_err!("other")), 1);
    }
}
