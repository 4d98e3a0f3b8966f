//! What the planner knows of the machine.

use std::sync::OnceLock;

/// Cache sizes that plans are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    /// Bytes of a core's second-level cache.
    pub l2: usize,
}

impl Machine {
    /// A machine of which nothing is known: half a mebibyte of L2, which every application core of the last years has.
    pub const UNKNOWN: Machine = Machine { l2: 512 << 10 };

    /// This machine, as Linux tells; elsewhere [`Machine::UNKNOWN`].
    pub fn current() -> &'static Machine {
        static CURRENT: OnceLock<Machine> = OnceLock::new();
        CURRENT.get_or_init(|| {
            let l2 = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index2/size")
                .ok()
                .and_then(|text| text.trim().strip_suffix('K')?.parse::<usize>().ok())
                .map(|kib| kib << 10)
                .filter(|bytes| (128 << 10..=16 << 20).contains(bytes));
            l2.map_or(Machine::UNKNOWN, |l2| Machine { l2 })
        })
    }
}
