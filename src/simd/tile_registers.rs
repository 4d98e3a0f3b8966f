//! Tile registers (AMX): whether this CPU has them, and whether this process may use them.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) use linux::*;

/// False, as this target has no tile registers.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(crate) fn are_available() -> bool {
    false
}

/// False, as this target has no tile registers.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(crate) fn are_permitted() -> bool {
    false
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod linux {
    use std::arch::x86_64::*;
    use std::sync::OnceLock;

    /// Linux's number of the component of a thread's state that holds tile registers.
    const XFEATURE_XTILE_DATA: libc::c_long = 18;

    /// Whether the CPU has tile registers for bf16 and bytes, and the system supports them. Does not request
    /// them.
    pub fn are_available() -> bool {
        static AVAILABLE: OnceLock<bool> = OnceLock::new();
        *AVAILABLE.get_or_init(|| {
            is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") && has_tiles() && is_supported()
        })
    }

    /// CPUID leaf 7: bit 22 of EDX stands for products of bf16, bit 24 for tiles, bit 25 for products of bytes.
    fn has_tiles() -> bool {
        const NEEDED: u32 = 1 << 22 | 1 << 24 | 1 << 25;
        let (most, _) = __get_cpuid_max(0);
        most >= 7 && __cpuid_count(7, 0).edx & NEEDED == NEEDED
    }

    /// Whether Linux can keep tile registers for a process that requests them. The query has no
    /// side effects.
    fn is_supported() -> bool {
        const ARCH_GET_XCOMP_SUPP: libc::c_long = 0x1021;
        let mut supported = 0u64;
        // SAFETY: the request writes 64 bits through the pointer, which points to 64 bits. Systems
        // that don't know it return an error.
        let known = unsafe {
            libc::syscall(libc::SYS_arch_prctl, ARCH_GET_XCOMP_SUPP, std::ptr::from_mut(&mut supported)) == 0
        };
        known && supported >> XFEATURE_XTILE_DATA & 1 == 1
    }

    static PERMITTED: OnceLock<bool> = OnceLock::new();

    /// Whether this process may use tile registers. The first call requests them, if there are any.
    pub fn are_permitted() -> bool {
        are_available() && *PERMITTED.get_or_init(ask)
    }

    /// Requests tile registers (`arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA)`).
    ///
    /// Linux keeps them only for processes that did so. New threads inherit the permission, and
    /// existing ones receive it too.
    fn ask() -> bool {
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        // SAFETY: the request takes two numbers and accesses no memory of this process.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA) == 0 }
    }

    /// Whether this process has requested tile registers.
    #[cfg(test)]
    pub fn has_asked() -> bool {
        PERMITTED.get().is_some()
    }
}
