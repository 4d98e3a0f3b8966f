//! Output tensors that are written whole, so never zero-filled.

use tract_core::internal::*;

/// Outputs from this size on are fresh pages at every run (glibc gives smaller blocks back to itself), and first touching them page by page can cost
/// more than the arithmetic: they ask for huge pages. Measured for 51 MB on this project's machine: see benches/record.
const HUGE_FROM: usize = 32 << 20;

/// A tensor for a strategy to overwrite entirely.
///
/// # Errors
/// When the size overflows or the memory can't be had.
pub(crate) fn uninitialized_output(dt: DatumType, shape: &[usize]) -> TractResult<Tensor> {
    let bytes = shape
        .iter()
        .try_fold(dt.size_of(), |bytes, dim| bytes.checked_mul(*dim))
        .with_context(|| format!("output size: shape={shape:?}, the number of bytes overflows"))?;
    if bytes >= HUGE_FROM {
        // tract panics where memory can't be had; at this size the trial is a mapping that is never touched
        let mut trial: Vec<u8> = vec![];
        ensure!(
            trial.try_reserve_exact(bytes).is_ok(),
            "output size: shape={shape:?}, {bytes} bytes can not be allocated"
        );
        // or else the compiler may drop the allocation
        std::hint::black_box(trial.as_mut_ptr());
    }
    // SAFETY: every strategy writes each element of its output (the property suite poisons outputs to show it), and
    // any bit pattern is a valid value of the number types that reach this.
    let mut tensor = unsafe { Tensor::uninitialized_dt(dt, shape)? };
    if bytes >= HUGE_FROM {
        advise_huge_pages(tensor.try_as_plain_ram_mut()?.as_bytes_mut());
    }
    Ok(tensor)
}

/// Asks the kernel for huge pages in the whole 2 MiB units of a block. Only a hint: a refusal changes nothing.
#[cfg(target_os = "linux")]
fn advise_huge_pages(block: &mut [u8]) {
    const UNIT: usize = 2 << 20;
    let skip = block.as_ptr().align_offset(UNIT);
    let len = block.len().saturating_sub(skip) / UNIT * UNIT;
    if len > 0 {
        // SAFETY: the range is page-aligned and inside a block that we borrow exclusively; MADV_HUGEPAGE does not change contents.
        unsafe { libc::madvise(block[skip..].as_mut_ptr().cast(), len, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_block: &mut [u8]) {}
