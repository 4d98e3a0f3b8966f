//! Memory whose size depends on the model: a failed allocation is an error, not an abort.
//!
//! Layer outputs are allocated in blocks that are kept for later outputs of the same size: see
//! [`release`] and [`set_pool_bytes`]. Working memory is kept as well. Other allocations of the
//! process are not affected.

pub(crate) mod fill;
mod pool;
mod pooled;
pub(crate) mod scratch;

pub use pool::DEFAULT_POOL_BYTES;
pub(crate) use pool::PoolUser;
pub(crate) use scratch::{Aligned, Scratch};

use crate::compute::Compute;
use pool::{BlockSource, POOL, SMALLEST};
use pooled::Pooled;
use std::alloc::Layout;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tract_core::internal::*;

/// Blocks from this size on request huge pages, because first touching small pages can cost more
/// than the arithmetic.
///
/// glibc maps each such block separately, so the request ends when the block is freed.
#[cfg(target_os = "linux")]
const LARGE_FROM: usize = 32 << 20;

/// Blocks from this size on are aligned to pages, so that they share no page with other blocks.
/// This wastes at most a 32nd of their size.
const PAGES_FROM: usize = 128 << 10;
const PAGE: usize = 4096;

/// The alignment of smaller blocks. With less, vectors would straddle cache lines.
const LINE: usize = 64;

/// Frees the idle output blocks, and the working memory that no layer is using.
///
/// The next run allocates them again. This happens automatically when the last model that has run a
/// layer is dropped.
pub fn release() {
    POOL.release();
    scratch::release();
}

/// Returns free memory of glibc's heap to the system. On other C libraries it does nothing.
///
/// Loading a model frees the weights as the file has them, and glibc keeps most of that memory for
/// later allocations. A program that holds many models can call this after it has loaded them. It
/// concerns the whole process and can take milliseconds. Nothing in this crate calls it.
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it may be called at any time and from any thread, and changes no allocation.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Sets the most bytes of idle output blocks, for the whole process.
///
/// The default is that of the knob `TRACT_DECONV_POOL_BYTES`, or else [`DEFAULT_POOL_BYTES`].
/// Idle blocks beyond the limit are freed, those that were returned first before others.
/// With 0, each output is allocated and freed.
pub fn set_pool_bytes(bytes: usize) {
    POOL.set_limit(bytes);
}

/// Returns the bytes of idle output blocks.
pub fn idle_bytes() -> usize {
    POOL.idle_bytes()
}

/// Tells the pool that a plan was made for a new shape.
pub(crate) fn planned() {
    POOL.planned();
}

/// An output tensor with unspecified contents, in a block of the pool if it is large enough. `what`
/// begins the message of an error.
///
/// # Safety
/// The type is a number type. Each element is written before it is read and before the tensor is
/// given to other code.
///
/// # Errors
/// The size overflows, or the memory can't be allocated.
pub(crate) unsafe fn output_tensor(what: &str, dt: DatumType, shape: &[usize]) -> TractResult<Tensor> {
    let bytes = bytes_of(what, dt, shape)?;
    ensure!(dt.is_copy(), "{what}: datum_type={dt:?}, a number is needed");
    let layout = Layout::from_size_align(bytes, alignment_of(bytes));
    let layout = layout.ok().with_context(|| no_memory(what, shape, bytes))?;
    let block = match POOL.source(layout) {
        BlockSource::Reused(block) => block,
        BlockSource::New => {
            // SAFETY: this function's contract. Any bit pattern is a number.
            let mut block = allocated(what, shape, bytes, || Ok(unsafe { Blob::for_layout(layout) }))?;
            advise_huge_pages(&mut block);
            block
        }
        // SAFETY: this function's contract.
        BlockSource::Unpooled => return unsafe { uninitialized_tensor(what, dt, shape) },
    };
    let mut tensor = Tensor::from_storage(dt, shape, Pooled::new(block, &POOL));
    fill::fill(dt, tensor.try_as_plain_ram_mut()?.as_bytes_mut());
    Ok(tensor)
}

/// As [`output_tensor`], but in an ordinary block: for tensors that live as long as the model.
///
/// # Safety
/// As [`output_tensor`].
///
/// # Errors
/// As [`output_tensor`].
pub(crate) unsafe fn uninitialized_tensor(what: &str, dt: DatumType, shape: &[usize]) -> TractResult<Tensor> {
    let bytes = bytes_of(what, dt, shape)?;
    // SAFETY: this function's contract. Any bit pattern is a number.
    let make = || unsafe { Tensor::uninitialized_aligned_dt(dt, shape, alignment_of(bytes)) };
    if bytes < SMALLEST {
        let mut tensor = make()?;
        fill::fill(dt, tensor.try_as_plain_ram_mut()?.as_bytes_mut());
        return Ok(tensor);
    }
    let mut tensor = allocated(what, shape, bytes, make)?;
    let mut view = tensor.try_as_plain_ram_mut()?;
    advise_huge_pages(view.as_bytes_mut());
    fill::fill(dt, view.as_bytes_mut());
    Ok(tensor)
}

/// A tensor of zeros. `what` begins the message of an error.
///
/// # Errors
/// As [`uninitialized_tensor`].
pub(crate) fn zero_tensor<T: Datum + Copy + Default>(what: &str, shape: &[usize]) -> TractResult<Tensor> {
    // SAFETY: all elements are numbers and are written here.
    unsafe {
        let mut tensor = uninitialized_tensor(what, T::datum_type(), shape)?;
        tensor.try_as_plain_ram_mut()?.as_slice_mut::<T>()?.fill(T::default());
        Ok(tensor)
    }
}

/// Applies `each` to the elements of a tensor that lives as long as the model. `what` begins the
/// message of an error.
///
/// # Errors
/// As [`uninitialized_tensor`], or the elements of `from` have another type.
pub(crate) fn mapped_tensor<A: Datum + Copy, B: Datum + Copy>(
    what: &str,
    from: &Tensor,
    each: impl Fn(A) -> B,
) -> TractResult<Tensor> {
    // SAFETY: `mapped` writes each element.
    mapped(what, from, each, |dt, shape| unsafe { uninitialized_tensor(what, dt, shape) })
}

/// As [`mapped_tensor`], for a tensor that lives as long as a run: its block comes from the pool.
///
/// # Errors
/// As [`mapped_tensor`].
pub(crate) fn mapped_output<A: Datum + Copy, B: Datum + Copy>(
    what: &str,
    from: &Tensor,
    each: impl Fn(A) -> B,
) -> TractResult<Tensor> {
    // SAFETY: `mapped` writes each element.
    mapped(what, from, each, |dt, shape| unsafe { output_tensor(what, dt, shape) })
}

/// Applies `each` to the elements of a tensor, writing each element of a new one that `make`
/// allocates.
fn mapped<A: Datum + Copy, B: Datum + Copy>(
    what: &str,
    from: &Tensor,
    each: impl Fn(A) -> B,
    make: impl FnOnce(DatumType, &[usize]) -> TractResult<Tensor>,
) -> TractResult<Tensor> {
    let ram = from.try_as_plain_ram()?;
    let elements = ram.as_slice::<A>()?;
    ensure!(B::datum_type().is_number(), "{what}: datum_type={:?}, a number is needed", B::datum_type());
    let mut tensor = make(B::datum_type(), from.shape())?;
    let mut view = tensor.try_as_plain_ram_mut()?;
    let to = view.as_slice_mut::<B>()?;
    assert_eq!(to.len(), elements.len());
    to.iter_mut().zip(elements).for_each(|(to, from)| *to = each(*from));
    Ok(tensor)
}

fn bytes_of(what: &str, dt: DatumType, shape: &[usize]) -> TractResult<usize> {
    let bytes = shape.iter().try_fold(dt.size_of(), |bytes, dim| bytes.checked_mul(*dim));
    bytes.with_context(|| format!("{what}: shape={shape:?}, the number of bytes overflows"))
}

fn alignment_of(bytes: usize) -> usize {
    if bytes < PAGES_FROM { LINE } else { PAGE }
}

fn no_memory(what: &str, shape: &[usize], bytes: usize) -> String {
    format!("{what}: shape={shape:?}, {bytes} bytes can not be allocated")
}

/// Makes a new block, after freeing the kept blocks if necessary.
///
/// tract has no fallible allocation, so this first asks the allocator for a block of that size.
/// Another thread may take the memory in between: that panic is caught.
fn allocated<T>(what: &str, shape: &[usize], bytes: usize, make: impl FnOnce() -> TractResult<T>) -> TractResult<T> {
    let whole = bytes.saturating_add(alignment_of(bytes));
    if !can_be_had(whole) {
        release();
        ensure!(can_be_had(whole), no_memory(what, shape, bytes));
    }
    catch_unwind(AssertUnwindSafe(make)).ok().with_context(|| no_memory(what, shape, bytes))?
}

/// Whether a block can be allocated. The block is freed again and never touched, so no page of it
/// is mapped.
fn can_be_had(bytes: usize) -> bool {
    let mut trial: Vec<u8> = vec![];
    let had = trial.try_reserve_exact(bytes).is_ok();
    // Otherwise the compiler may remove the allocation.
    std::hint::black_box(trial.as_mut_ptr());
    had
}

/// An empty vector with capacity for `len` elements. `what` begins the message of an error.
///
/// # Errors
/// The memory can't be allocated.
pub(crate) fn reserved<T>(what: &str, len: usize) -> TractResult<Vec<T>> {
    let mut vec = vec![];
    reserve(what, &mut vec, len)?;
    Ok(vec)
}

/// `len` zeros. `what` begins the message of an error.
///
/// # Errors
/// The memory can't be allocated.
pub(crate) fn zeros<T: Compute>(what: &str, len: usize) -> TractResult<Vec<T>> {
    let mut vec = reserved(what, len)?;
    vec.resize(len, T::ZERO);
    Ok(vec)
}

/// Replaces a vector's contents by `len` copies of a value.
///
/// # Errors
/// The memory can't be allocated.
pub(crate) fn refill<T: Compute>(what: &str, vec: &mut Vec<T>, len: usize, value: T) -> TractResult<()> {
    vec.clear();
    reserve(what, vec, len)?;
    vec.resize(len, value);
    Ok(())
}

/// The items of an iterator. `what` begins the message of an error.
///
/// # Errors
/// The memory can't be allocated.
pub(crate) fn collected<T>(what: &str, values: impl ExactSizeIterator<Item = T>) -> TractResult<Vec<T>> {
    let mut vec = reserved(what, values.len())?;
    vec.extend(values);
    Ok(vec)
}

/// A tensor of the given values, as many as `shape` has elements. `what` begins the message of an
/// error.
///
/// # Errors
/// The number of values differs, or the memory can't be allocated.
pub(crate) fn tensor_of<T: Datum + Copy + Default>(
    what: &str,
    shape: &[usize],
    values: impl ExactSizeIterator<Item = T>,
) -> TractResult<Tensor> {
    let mut tensor = zero_tensor::<T>(what, shape)?;
    let mut view = tensor.try_as_plain_ram_mut()?;
    let slice = view.as_slice_mut::<T>()?;
    ensure!(values.len() == slice.len(), "{what}: length={}, the shape is {shape:?}", values.len());
    slice.iter_mut().zip(values).for_each(|(to, value)| *to = value);
    Ok(tensor)
}

/// Reserves capacity for `len` elements in total. `what` begins the message of an error.
///
/// # Errors
/// The memory can't be allocated.
pub(crate) fn reserve<T>(what: &str, vec: &mut Vec<T>, len: usize) -> TractResult<()> {
    ensure!(
        vec.try_reserve_exact(len.saturating_sub(vec.len())).is_ok(),
        "{what}: length={len}, {} bytes can not be allocated",
        len.saturating_mul(size_of::<T>())
    );
    Ok(())
}

/// Requests huge pages for the whole 2 MiB units of a block of at least [`LARGE_FROM`]. A refusal
/// has no effect.
#[cfg(target_os = "linux")]
fn advise_huge_pages(block: &mut [u8]) {
    const UNIT: usize = 2 << 20;
    let skip = block.as_ptr().align_offset(UNIT);
    let len = block.len().saturating_sub(skip) / UNIT * UNIT;
    if block.len() >= LARGE_FROM && len > 0 {
        // SAFETY: the range is page-aligned and inside a block that is borrowed exclusively here.
        // MADV_HUGEPAGE does not change contents.
        unsafe { libc::madvise(block[skip..].as_mut_ptr().cast(), len, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_block: &mut [u8]) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn a_trimmed_heap_holds_less() {
        let resident = || -> usize {
            let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux tells it");
            pages.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number of pages")
        };
        // below the size that glibc maps by itself, and held from above
        let blocks: Vec<Vec<u8>> = (0..1000).map(|_| vec![1; 64 << 10]).collect();
        let last = vec![1u8; 64 << 10];
        let before = resident();
        drop(blocks);
        trim_heap();
        let freed = before.saturating_sub(resident()) * PAGE;
        assert!(freed > 32 << 20, "freed {freed} bytes");
        drop(last);
    }

    #[test]
    fn no_memory_is_an_error() {
        let shown = |result: TractResult<()>| format!("{:#}", result.expect_err("more than an address space"));
        // No system has eight times that for one allocation.
        let len: usize = if usize::BITS > 32 { 1 << 50 } else { 1 << 28 };
        let eight = len * 8;
        // SAFETY: the allocation fails, so there are no elements.
        let tensor = unsafe { uninitialized_tensor("output size", f64::datum_type(), &[len]).map(|_| ()) };
        assert_eq!(shown(tensor), format!("output size: shape=[{len}], {eight} bytes can not be allocated"));
        let zeros = zeros::<f64>("sums", len).map(|_| ());
        assert_eq!(shown(zeros), format!("sums: length={len}, {eight} bytes can not be allocated"));
        let mut row = vec![1f32; 3];
        assert!(refill("row", &mut row, usize::MAX, 0.0).is_err());
    }

    #[test]
    fn a_refill_forgets_what_was_there() -> TractResult<()> {
        let mut row = vec![1f32, 2., 3.];
        refill("row", &mut row, 2, 5.0)?;
        assert_eq!(row, [5., 5.]);
        Ok(())
    }
}
