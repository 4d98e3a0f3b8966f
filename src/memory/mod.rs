//! Memory whose size a model decides: where it can't be had, there is an error and no abort.

mod fill;
mod scratch;

pub(crate) use fill::Working;
pub use fill::fill_new_memory;
pub(crate) use scratch::{Aligned, Scratch, Shelf};

use crate::element::Compute;
use std::sync::Once;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
use std::{
    ffi::OsString,
    sync::{LazyLock, Mutex, PoisonError},
};
use tract_core::internal::*;

/// Outputs from this size on ask for huge pages. glibc maps such blocks one by one, fresh at every run, if it is not told otherwise, and first touching the
/// pages can cost more than the arithmetic.
const LARGE_FROM: usize = 32 << 20;

/// Tensors from this size on are tried for: tract panics where memory can't be had. Below, nothing else in the process could
/// go on either.
const TRIED_FROM: usize = 128 << 10;

/// Tensors of that size begin on a page where a block is cut for them. glibc cuts it out of a larger one: what it cuts off before a page may go back to it
/// when it is freed; what it cuts off before a cache line does not, and the next tensor would not fit (2.1 times slower on 2 MB, Zen 4).
const PAGE: usize = 4096;

/// Blocks that are tried, at most, until one is aligned. Each takes a microsecond and no memory.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const ATTEMPTS: usize = 16;

/// The alignment that blocks have by themselves, with nothing cut off, and that without which vectors would lie across cache lines.
const OF_BLOCKS: usize = 16;
const LINE: usize = 64;

/// The smallest output from which on glibc is made to take all blocks from its heap. The blocks of more than 32 MiB that it maps one by one are then where others
/// were, instead of beside them: a U-Net of outputs of 3 MB, of whose forward convolutions tract copies 55 MiB, peaked at 95 to 109 MiB for 122 to 133.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const IN_HEAP_FROM: usize = 1 << 20;

/// What glibc learns to keep at the heap's end by itself, at most.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LEARNT: usize = 64 << 20;

/// The smallest and the largest output that has a place of its own, and that glibc is made to keep (layers of 42 to 134 MB took 0.62 to 0.79 of the time on a Xeon,
/// where the system clears 7 GB/s).
const KEPT_FROM: usize = 16 << 20;
const KEPT_TO: usize = 256 << 20;

/// How many of the largest outputs there is room for at the heap's end before it is given back: what is tried for counts, too, though it is never touched. With
/// less, a model gives the end back at every run and gets it as fresh pages in the next (a U-Net at 256 × 256 took 177 ms for 162, a Xeon).
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const ROOM_FOR: usize = 4;

/// A tensor of whatever the memory holds. `what` begins the message of an error.
///
/// # Safety
/// The type is a number's, and each element is written before it is read, or the tensor given to anybody.
///
/// # Errors
/// When the size overflows or the memory can't be had.
pub(crate) unsafe fn uninitialized_tensor(what: &str, dt: DatumType, shape: &[usize]) -> TractResult<Tensor> {
    let bytes = shape
        .iter()
        .try_fold(dt.size_of(), |bytes, dim| bytes.checked_mul(*dim))
        .with_context(|| format!("{what}: shape={shape:?}, the number of bytes overflows"))?;
    if bytes >= TRIED_FROM {
        keep_room_for(bytes);
        // with what is cut off
        let room = bytes.saturating_add(2 * PAGE);
        ensure!(can_be_had(room), "{what}: shape={shape:?}, {bytes} bytes can not be allocated");
    }
    // SAFETY: this function's contract; any bit pattern is a number.
    let mut tensor = unsafe {
        match bytes {
            KEPT_FROM..=KEPT_TO => tensor_at_a_place(dt, shape, bytes)?,
            TRIED_FROM.. => aligned_tensor(dt, shape)?,
            _ => Tensor::uninitialized_dt(dt, shape)?,
        }
    };
    if bytes >= LARGE_FROM {
        advise_huge_pages(tensor.try_as_plain_ram_mut()?.as_bytes_mut());
    }
    fill::fill(dt, tensor.try_as_plain_ram_mut()?.as_bytes_mut());
    Ok(tensor)
}

/// A tensor of zeros. `what` begins the message of an error.
///
/// # Errors
/// As [`uninitialized_tensor`].
pub(crate) fn zero_tensor<T: Datum + Copy + Default>(what: &str, shape: &[usize]) -> TractResult<Tensor> {
    // SAFETY: all elements, which are numbers, are written here.
    unsafe {
        let mut tensor = uninitialized_tensor(what, T::datum_type(), shape)?;
        tensor.try_as_plain_ram_mut()?.as_slice_mut::<T>()?.fill(T::default());
        Ok(tensor)
    }
}

/// A tensor of what `each` makes of the elements of another one. `what` begins the message of an error.
///
/// # Errors
/// As [`uninitialized_tensor`], or when the elements of `from` are of another type.
pub(crate) fn mapped_tensor<A: Datum + Copy, B: Datum + Copy>(
    what: &str,
    from: &Tensor,
    each: impl Fn(A) -> B,
) -> TractResult<Tensor> {
    let ram = from.try_as_plain_ram()?;
    let elements = ram.as_slice::<A>()?;
    ensure!(B::datum_type().is_number(), "{what}: datum_type={:?}, a number is needed", B::datum_type());
    // SAFETY: the elements are numbers, and each is written here: there are as many as the other tensor of the same shape has.
    let mut tensor = unsafe { uninitialized_tensor(what, B::datum_type(), from.shape())? };
    let mut view = tensor.try_as_plain_ram_mut()?;
    let to = view.as_slice_mut::<B>()?;
    assert_eq!(to.len(), elements.len());
    to.iter_mut().zip(elements).for_each(|(to, from)| *to = each(*from));
    Ok(tensor)
}

/// Takes the very block that an earlier tensor of the same size left, where there is one, and else cuts one at a page. What was cut off the earlier one may have
/// become a small block that glibc keeps: were the next cut out of a larger one, runs would get fresh pages, and the process grow by an output at each of the
/// first (by fourteen of 17 MB, of one layer).
///
/// # Safety
/// As [`Tensor::uninitialized_aligned_dt`].
unsafe fn aligned_tensor(dt: DatumType, shape: &[usize]) -> TractResult<Tensor> {
    // SAFETY: this function's contract.
    unsafe {
        let tensor = Tensor::uninitialized_aligned_dt(dt, shape, OF_BLOCKS)?;
        if tensor.as_bytes().as_ptr().addr().is_multiple_of(LINE) {
            return Ok(tensor);
        }
        drop(tensor);
        Tensor::uninitialized_aligned_dt(dt, shape, PAGE)
    }
}

/// As [`aligned_tensor`], for blocks so large that nothing else in the process fits where they were. A cut at a page leaves something before it, to which the block is
/// joined again when it is freed, and from where the next tensor would then begin: not aligned, and too short for another cut, so that each run would take fresh
/// memory. So a place is made for the first tensor of each size, and where no free block is aligned; those that are not are held while the tensor is allocated.
///
/// # Safety
/// As [`Tensor::uninitialized_aligned_dt`].
#[cfg(all(target_os = "linux", target_env = "gnu"))]
unsafe fn tensor_at_a_place(dt: DatumType, shape: &[usize], bytes: usize) -> TractResult<Tensor> {
    let mut held: TVec<*mut libc::c_void> = tvec![];
    for attempt in 0..ATTEMPTS {
        if let 0 | 2 = attempt {
            // where what did not fit was, there may be room for a place: pages that are there already
            // SAFETY: each was allocated below.
            held.drain(..).for_each(|block| unsafe { libc::free(block) });
            make_place(bytes, attempt == 0);
        }
        // SAFETY: what is freed was just allocated. Not by way of Rust's allocator, which may be another one, or count.
        let block = std::hint::black_box(unsafe { libc::malloc(bytes) });
        if block.is_null() {
            break;
        }
        if block.addr().is_multiple_of(LINE) {
            // SAFETY: as above. The tensor's block is this one then.
            unsafe { libc::free(block) };
            break;
        }
        held.push(block);
    }
    // SAFETY: this function's contract.
    let tensor = unsafe { Tensor::uninitialized_aligned_dt(dt, shape, OF_BLOCKS) };
    // SAFETY: each was allocated above.
    held.into_iter().for_each(|block| unsafe { libc::free(block) });
    let tensor = tensor?;
    if tensor.as_bytes().as_ptr().addr().is_multiple_of(LINE) {
        return Ok(tensor);
    }
    drop(tensor);
    // SAFETY: this function's contract.
    unsafe { aligned_tensor(dt, shape) }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
unsafe fn tensor_at_a_place(dt: DatumType, shape: &[usize], _bytes: usize) -> TractResult<Tensor> {
    // SAFETY: this function's contract.
    unsafe { aligned_tensor(dt, shape) }
}

/// Leaves a free block that begins at a page: one that is larger is made shorter, so that it ends there, and never freed, so that nothing is joined to the front of
/// what follows. That takes up to two pages, of which one is ever touched, for a limited number of places. `only` where the size has none yet.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn make_place(bytes: usize, only: bool) {
    const MOST: usize = 64;
    /// A block's header lies before it, its first half within the block before.
    const HEADER: usize = 16;
    /// The sizes that there are places for, and what is before each.
    static PLACES: Mutex<Vec<(usize, usize)>> = Mutex::new(vec![]);
    let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    if places.len() == MOST || only && places.iter().any(|place| place.0 == bytes) {
        return;
    }
    // SAFETY: the block is made shorter, or stays as it is and is freed.
    unsafe {
        let block = libc::malloc(bytes.saturating_add(3 * PAGE));
        if block.is_null() {
            return;
        }
        let to_page = PAGE + block.addr().wrapping_neg() % PAGE;
        let before = libc::realloc(block, to_page - HEADER / 2);
        if before.is_null() {
            return libc::free(block);
        }
        places.push((bytes, before.expose_provenance()));
    }
}

/// What comes after the system got back what is free.
#[derive(Clone, Copy)]
pub(crate) enum Before {
    /// The first filter is packed: loading a model left free what it read.
    Packing,
    /// The first layer is run: optimising it left free the filters as they were.
    Running,
}

/// Gives the pages that are free back to the system, once a process each: glibc would keep them, and a model's weights count twice in its memory (91 MiB of a
/// DCGAN at the peak and 73 MiB after it, for 85 and 45). Takes a millisecond or two of the time it took to load it.
pub(crate) fn give_back_free_pages(before: Before) {
    static GIVEN: [Once; 2] = [const { Once::new() }; 2];
    GIVEN[before as usize].call_once(trim);
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn trim() {
    // SAFETY: only free pages are given back, at any time and from any thread.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn trim() {}

/// Makes glibc keep several times an output's size free at the heap's end. Up to [`IN_HEAP_FROM`] it is shown a block half as large, of which it learns; from there on
/// it is told, and to take all blocks out of its heap, but where the environment tells it what to do. Threads other than the first have heaps of 64 MiB, beyond which
/// blocks are mapped as before.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn keep_room_for(bytes: usize) {
    static KEPT: Mutex<usize> = Mutex::new(0);
    static TOLD: LazyLock<bool> = LazyLock::new(|| {
        let told = |(name, value): (OsString, OsString)| {
            let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
            let threshold = name.starts_with("MALLOC_") && (name.contains("MMAP") || name.contains("TRIM"));
            threshold || name == "GLIBC_TUNABLES" && value.contains("glibc.malloc.")
        };
        std::env::vars_os().any(told)
    });
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if bytes > KEPT_TO || bytes <= *kept {
        return;
    }
    *kept = bytes;
    if bytes < IN_HEAP_FROM {
        // Not by way of Rust's allocator, which may be another one, or count. `black_box`, or else the compiler may drop both calls.
        // SAFETY: what is freed was just allocated, or is null.
        unsafe { libc::free(std::hint::black_box(libc::malloc(ROOM_FOR * bytes))) }
    } else if !*TOLD {
        // SAFETY: two numbers that steer the allocator, which may be set at any time and from any thread; the larger is 2^30.
        unsafe {
            libc::mallopt(libc::M_TRIM_THRESHOLD, LEARNT.max(ROOM_FOR * bytes) as libc::c_int);
            libc::mallopt(libc::M_MMAP_MAX, 0);
        }
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn keep_room_for(_bytes: usize) {}

/// Takes a block and gives it back. It is never touched, so that no page of it is ever made.
fn can_be_had(bytes: usize) -> bool {
    let mut trial: Vec<u8> = vec![];
    let had = trial.try_reserve_exact(bytes).is_ok();
    // or else the compiler may drop the allocation
    std::hint::black_box(trial.as_mut_ptr());
    had
}

/// An empty vector with room for `len` elements. `what` begins the message of an error.
///
/// # Errors
/// When the memory can't be had.
pub(crate) fn reserved<T>(what: &str, len: usize) -> TractResult<Vec<T>> {
    let mut vec = vec![];
    reserve(what, &mut vec, len)?;
    Ok(vec)
}

/// `len` zeros. `what` begins the message of an error.
///
/// # Errors
/// When the memory can't be had.
pub(crate) fn zeros<T: Compute>(what: &str, len: usize) -> TractResult<Vec<T>> {
    let mut vec = reserved(what, len)?;
    vec.resize(len, T::ZERO);
    Ok(vec)
}

/// Empties a vector and fills it with `len` copies of a value.
///
/// # Errors
/// When the memory can't be had.
pub(crate) fn refill<T: Compute>(what: &str, vec: &mut Vec<T>, len: usize, value: T) -> TractResult<()> {
    vec.clear();
    reserve(what, vec, len)?;
    vec.resize(len, value);
    Ok(())
}

/// Room for `len` elements in all.
fn reserve<T>(what: &str, vec: &mut Vec<T>, len: usize) -> TractResult<()> {
    ensure!(
        vec.try_reserve_exact(len.saturating_sub(vec.len())).is_ok(),
        "{what}: length={len}, {} bytes can not be allocated",
        len.saturating_mul(size_of::<T>())
    );
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_memory_is_an_error() {
        let shown = |result: TractResult<()>| format!("{:#}", result.expect_err("more than an address space"));
        let len = 1 << 50;
        // SAFETY: there is none.
        let tensor = unsafe { uninitialized_tensor("output size", f32::datum_type(), &[len]).map(|_| ()) };
        assert_eq!(shown(tensor), "output size: shape=[1125899906842624], 4503599627370496 bytes can not be allocated");
        let zeros = zeros::<f64>("sums", len).map(|_| ());
        assert_eq!(shown(zeros), "sums: length=1125899906842624, 9007199254740992 bytes can not be allocated");
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
