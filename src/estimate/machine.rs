//! What the planner knows of the machine.

use crate::simd::isa::Isa;
use std::sync::OnceLock;

/// A machine that plans are made for: see [`PlanOptions::machine`](crate::PlanOptions::machine).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    name: &'static str,
    isa: Option<Isa>,
    /// Bytes of a core's second-level cache.
    pub(crate) l2: usize,
}

impl Machine {
    /// An x86 core with AVX-512 and 1 MiB of L2.
    pub const ZEN4: Machine = Machine { name: "zen4", isa: Some(Isa::Avx512), l2: 1 << 20 };
    /// An x86 core with AVX-512, tile registers and 2 MiB of L2.
    pub const SAPPHIRE_RAPIDS: Machine = Machine { name: "sapphire_rapids", isa: Some(Isa::Amx), l2: 2 << 20 };
    /// A core of which nothing is known: portable kernels, and the 512 KiB of L2 that application cores have at least.
    pub const GENERIC: Machine = Machine { name: "generic", isa: Some(Isa::Portable), l2: 512 << 10 };

    /// Every machine that has a name.
    pub const ALL: &[Machine] = &[Machine::ZEN4, Machine::SAPPHIRE_RAPIDS, Machine::GENERIC];

    /// The machine that this program runs on. Linux tells its L2; elsewhere that of [`Machine::GENERIC`] is taken.
    pub fn current() -> &'static Machine {
        static CURRENT: OnceLock<Machine> = OnceLock::new();
        CURRENT.get_or_init(|| {
            let l2 = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index2/size")
                .ok()
                .and_then(|text| text.trim().strip_suffix('K')?.parse::<usize>().ok())
                .map(|kib| kib << 10)
                .filter(|bytes| (128 << 10..=16 << 20).contains(bytes));
            Machine { name: "current", isa: None, l2: l2.unwrap_or(Machine::GENERIC.l2) }
        })
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The best instruction set that it has.
    pub fn isa(&self) -> Isa {
        self.isa.unwrap_or_else(Isa::best)
    }
}
