//! The machines that the planner knows, one row each.
//!
//! A row has the sizes of the caches and the [`Rates`] of the cost model.
//! `cargo bench --bench planner -- --fit` fits the rates to the current machine and prints a row. A
//! machine without a row uses the row of its instruction set, if that has one, or else the rates of
//! [`Machine::GENERIC`]. Either way it uses the sizes of its own caches.

use crate::simd::bf16;
use crate::simd::isa::Isa;
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;
use tract_core::internal::*;
use tract_linalg::cache::cache_info;

/// Declares [`Rates`] and the access to its fields by name, which fitting needs.
macro_rules! rates {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// The speed of a machine in the basic steps of the algorithms.
        ///
        /// The unit is a vector multiply-add, unless a rate says otherwise.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct Rates {
            $($(#[doc = $doc])+ pub(crate) $name: f64,)+
        }

        impl Rates {
            /// The names of all rates.
            pub const NAMES: &[&str] = &[$(stringify!($name)),+];

            /// Returns the rate with this name.
            pub fn get(&self, name: &str) -> Option<f64> {
                match name {
                    $(stringify!($name) => Some(self.$name),)+
                    _ => None,
                }
            }

            /// Returns the same rates with another value for one name.
            ///
            /// An unknown name changes nothing. Nor does a value that is negative or not finite.
            pub fn with(mut self, name: &str, value: f64) -> Rates {
                if value.is_finite() && value >= 0.0 {
                    match name {
                        $(stringify!($name) => self.$name = value,)+
                        _ => {}
                    }
                }
                self
            }
        }
    };
}

rates! {
    /// Vector multiply-adds per nanosecond in dense layers. It converts estimates to times.
    fma_per_ns,
    /// Loading an operand of a register tile.
    tile_load,
    /// Multiply-adds that are in flight at once: a smaller register tile waits for its own sums.
    tile_latency,
    /// Bytes that a register tile reads from L2 in the time of a vector multiply-add.
    l2_bytes_per_fma,
    /// How long the transforms of Winograd tiles take, relative to the first fit to the Zen 4.
    transforms,
    /// A product of a depthwise layer's window, relative to the Zen 4's.
    window_products,
    /// The same where the window moves by two columns.
    strided_window_products,
    /// A product of rows whose phases are interleaved, relative to the Zen 4's.
    interleaved_products,
    /// A product of pixels, relative to the Zen 4's.
    pixel_products,
    /// Storing a vector of an output row from a register tile.
    row_store,
    /// Calling a register tile that writes an output row itself.
    row_tile_call,
    /// Transposing and storing a vector of sums whose lanes are channels.
    transposed_store,
    /// The same if the planes of the output are a multiple of 4 KiB apart. They then compete for
    /// the same cache sets.
    aliased_transposed_store,
    /// Storing a row of one phase of one channel from transposed sums, among the other phases of its output row.
    interleaved_row,
    /// Loading a vector again that L2 has evicted: of weights, or of transformed tiles.
    far_weights,
    /// The share of the last-level cache whose contents a thread still finds in its next run. Zero
    /// if only L2 counts.
    l3_share,
    /// Bytes beyond the caches that are read or written in the time of a vector multiply-add.
    bytes_per_fma,
    /// The share of the memory traffic of dense layers that adds to their time. It is 1 if all of
    /// it does, and 0 if it hides behind arithmetic.
    dense_traffic,
    /// The same for channels-first layers of one channel per group whose lanes are channels.
    pixel_traffic,
    /// The extra time per tap of a position near the border of such layers.
    border_tap,
    /// Reading a vector of the input in place from L2, if there are more planes than
    /// `fetched_planes`.
    near_in_place,
    /// Reading a vector of the input in place from beyond L2, in a single pass.
    far_in_place,
    /// The same per pass, if there are several passes.
    far_in_place_again,
    /// The same per panel and per part of a cache line, if more planes compete for a set of L1 than it has ways.
    aliased_in_place,
    /// The same if the planes compete for the same sets of L2. It includes the multiply-adds of the
    /// tile.
    aliased_in_place_l2,
    /// Reading a vector of a plane beyond L2, in place or into pixels, if the planes are more than `fetched_planes`
    /// and a few positions of each are read at a time.
    far_pixels,
    /// Reading from a plane in place, per panel and register tile, if the first-level TLB does not hold the pages of all
    /// planes that a tile sums.
    tlb_miss,
    /// The share of a register tile's time that is left if its input is in the order in which it reads.
    in_tile_order,
    /// Reading a vector of copied pixels beyond L2 once per panel of output channels, if one tap alone reads each pixel.
    far_pixels_of_one_tap,
    /// The wait of several panels of one vector for input in place, besides its passes.
    narrow_in_place,
    /// Planes that the CPU prefetches by itself.
    fetched_planes,
    /// Selecting the positions of a row that strided taps read.
    strided_row,
    /// The most output planes that a tile's input is multiplied into before the next tile.
    planes_at_once,
    /// The steps of tile registers, relative to the Sapphire Rapids'.
    tile_registers,
    /// Nanoseconds of work from which it is worthwhile to wake another thread.
    share_ns,
    /// Nanoseconds of work from which it is worthwhile to share it with a spinning worker.
    share_spinning_ns,
}

/// A machine that plans are made for: see [`PlanOptions::machine`](crate::PlanOptions::machine).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    name: &'static str,
    isa: Isa,
    /// Bytes of a core's second-level cache.
    pub(crate) l2: usize,
    /// Bytes of the last-level cache. 0 if L2 is the last level.
    pub(crate) l3: usize,
    pub(crate) rates: Rates,
    /// Whether prefetch instructions ahead of a tile's reads are worthwhile.
    pub(crate) prefetch_pays: bool,
    /// Whether vectors multiply pairs of bf16.
    pub(crate) multiplies_bf16: bool,
    /// The CPUs that the row holds for. Empty if it holds for its instruction set on any CPU.
    cpus: &'static [Cpu],
}

/// CPUs that a row holds for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cpu {
    /// The vendor of x86 CPUs, their family, and a range of models.
    X86 { vendor: &'static str, family: u32, models: (u32, u32) },
    /// The kind of aarch64 CPUs, by tract's name for it.
    Aarch64 { kind: &'static str },
}

/// The CPU that the program runs on.
#[derive(Clone, Debug, PartialEq)]
#[allow(dead_code, reason = "a target makes at most one of them")]
enum ThisCpu {
    X86 { vendor: String, family: u32, model: u32 },
    Aarch64 { kind: String },
}

impl Cpu {
    fn describes(&self, cpu: &ThisCpu) -> bool {
        match (self, cpu) {
            (Cpu::X86 { vendor, family, models }, ThisCpu::X86 { vendor: found, family: of, model }) => {
                vendor == found && family == of && (models.0..=models.1).contains(model)
            }
            (Cpu::Aarch64 { kind }, ThisCpu::Aarch64 { kind: found }) => kind == found,
            _ => false,
        }
    }
}

impl Machine {
    /// AMD's Zen 3 with AVX2, on which it was fitted. Every other CPU without wider vectors has this row too.
    pub const ZEN3: Machine = Machine {
        name: "zen3",
        isa: Isa::Avx2,
        l2: 512 << 10,
        l3: 32 << 20,
        rates: Rates {
            fma_per_ns: 4.8,
            tile_load: 1.0,
            tile_latency: 8.0,
            l2_bytes_per_fma: 20.0,
            transforms: 1.55,
            window_products: 2.0,
            strided_window_products: 4.4,
            interleaved_products: 1.38,
            pixel_products: 1.25,
            row_store: 5.5,
            row_tile_call: 1.0,
            transposed_store: 15.0,
            aliased_transposed_store: 10.0,
            interleaved_row: 20.0,
            far_weights: 3.0,
            l3_share: 0.62,
            bytes_per_fma: 3.3,
            dense_traffic: 0.0,
            pixel_traffic: 0.0,
            border_tap: 10.0,
            near_in_place: 0.0,
            far_in_place: 4.0,
            far_in_place_again: 0.8,
            aliased_in_place: 8.0,
            aliased_in_place_l2: 0.0,
            far_pixels: 4.0,
            tlb_miss: 2.0,
            in_tile_order: 0.9,
            far_pixels_of_one_tap: 0.0,
            narrow_in_place: 60.0,
            fetched_planes: 17.0,
            strided_row: 360.0,
            planes_at_once: 16.0,
            tile_registers: 1.0,
            share_ns: 34_000.0,
            share_spinning_ns: 5_000.0,
        },
        prefetch_pays: true,
        multiplies_bf16: false,
        cpus: &[],
    };

    /// AMD's Zen 4 with AVX-512. The rates of [`Machine::GENERIC`], which were first fitted to it, hold but for those that were fitted anew.
    pub const ZEN4: Machine = Machine {
        name: "zen4",
        isa: Isa::Avx512,
        l2: 1 << 20,
        l3: 32 << 20,
        rates: Rates {
            transforms: 0.75,
            window_products: 1.2,
            strided_window_products: 1.2,
            interleaved_products: 1.25,
            pixel_products: 1.25,
            interleaved_row: 6.0,
            l3_share: 0.56,
            bytes_per_fma: 4.0,
            pixel_traffic: 0.7,
            border_tap: 2.0,
            in_tile_order: 0.95,
            ..Machine::GENERIC.rates
        },
        prefetch_pays: true,
        multiplies_bf16: true,
        cpus: &[
            Cpu::X86 { vendor: "AuthenticAMD", family: 25, models: (0x10, 0x1f) },
            Cpu::X86 { vendor: "AuthenticAMD", family: 25, models: (0x60, 0x7f) },
            Cpu::X86 { vendor: "AuthenticAMD", family: 25, models: (0xa0, 0xaf) },
        ],
    };

    /// Intel's Sapphire Rapids with tile registers (AMX).
    pub const SAPPHIRE_RAPIDS: Machine = Machine {
        name: "sapphire_rapids",
        isa: Isa::Amx,
        l2: 2 << 20,
        l3: 32 << 20,
        rates: Rates {
            fma_per_ns: 5.3,
            tile_load: 1.0,
            tile_latency: 8.0,
            l2_bytes_per_fma: 20.0,
            transforms: 1.0,
            window_products: 1.0,
            strided_window_products: 1.0,
            interleaved_products: 1.0,
            pixel_products: 1.0,
            row_store: 19.0,
            row_tile_call: 0.0,
            transposed_store: 17.0,
            aliased_transposed_store: 17.0,
            interleaved_row: 20.0,
            far_weights: 30.0,
            l3_share: 0.0,
            bytes_per_fma: 20.0,
            dense_traffic: 0.0,
            pixel_traffic: 0.0,
            border_tap: 0.0,
            near_in_place: 6.0,
            far_in_place: 20.0,
            far_in_place_again: 0.0,
            aliased_in_place: 0.0,
            aliased_in_place_l2: 0.0,
            far_pixels: 0.0,
            tlb_miss: 0.0,
            in_tile_order: 1.0,
            far_pixels_of_one_tap: 0.0,
            narrow_in_place: 0.0,
            fetched_planes: 64.0,
            strided_row: 0.0,
            planes_at_once: 64.0,
            tile_registers: 1.0,
            share_ns: 25_000.0,
            share_spinning_ns: 25_000.0,
        },
        prefetch_pays: false,
        multiplies_bf16: true,
        cpus: &[Cpu::X86 { vendor: "GenuineIntel", family: 6, models: (0x8f, 0x8f) }],
    };

    /// Intel's Emerald Rapids with tile registers (AMX).
    ///
    /// Other CPUs of Intel with tile registers have this row too, unmeasured.
    ///
    /// The rates were fitted on two cores of a server that other guests shared. Tile registers count a fifth
    /// more than measured in a calm hour, as such guests slow them more than vectors.
    pub const EMERALD_RAPIDS: Machine = Machine {
        name: "emerald_rapids",
        isa: Isa::Amx,
        l2: 2 << 20,
        l3: 260 << 20,
        rates: Rates {
            fma_per_ns: 4.46,
            tile_load: 2.2,
            tile_latency: 0.0,
            l2_bytes_per_fma: 12.1,
            transforms: 2.3,
            window_products: 2.5,
            strided_window_products: 1.95,
            interleaved_products: 1.8,
            pixel_products: 2.75,
            row_store: 4.95,
            row_tile_call: 0.0,
            transposed_store: 17.9,
            aliased_transposed_store: 27.2,
            interleaved_row: 20.0,
            far_weights: 0.0,
            l3_share: 0.56,
            bytes_per_fma: 6.0,
            dense_traffic: 0.5,
            pixel_traffic: 1.0,
            border_tap: 9.4,
            near_in_place: 0.8,
            far_in_place: 8.6,
            far_in_place_again: 1.0,
            aliased_in_place: 0.0,
            aliased_in_place_l2: 40.0,
            far_pixels: 0.0,
            tlb_miss: 0.0,
            in_tile_order: 1.0,
            far_pixels_of_one_tap: 0.0,
            narrow_in_place: 30.0,
            fetched_planes: 0.0,
            strided_row: 100.0,
            planes_at_once: 16.0,
            tile_registers: 1.3,
            share_ns: 34_000.0,
            share_spinning_ns: 5_000.0,
        },
        prefetch_pays: true,
        multiplies_bf16: true,
        cpus: &[Cpu::X86 { vendor: "GenuineIntel", family: 6, models: (0x90, 0xff) }],
    };

    /// Intel's Granite Rapids with tile registers (AMX).
    ///
    /// The rates were fitted on two cores of a server that other guests shared, whose model number is hidden: its
    /// instructions and caches are those of a Granite Rapids.
    pub const GRANITE_RAPIDS: Machine = Machine {
        name: "granite_rapids",
        isa: Isa::Amx,
        l2: 2 << 20,
        l3: 480 << 20,
        rates: Rates {
            fma_per_ns: 4.86,
            tile_load: 1.375,
            tile_latency: 7.2,
            l2_bytes_per_fma: 13.3,
            transforms: 4.0,
            window_products: 3.1,
            strided_window_products: 1.9,
            interleaved_products: 1.4,
            pixel_products: 2.2,
            row_store: 4.5,
            row_tile_call: 16.0,
            transposed_store: 11.2,
            aliased_transposed_store: 21.8,
            interleaved_row: 20.0,
            far_weights: 1.0,
            l3_share: 0.035,
            bytes_per_fma: 3.75,
            dense_traffic: 0.8,
            pixel_traffic: 1.0,
            border_tap: 0.0,
            near_in_place: 1.0,
            far_in_place: 9.0,
            far_in_place_again: 1.0,
            aliased_in_place: 0.0,
            aliased_in_place_l2: 40.0,
            far_pixels: 5.0,
            tlb_miss: 0.0,
            in_tile_order: 1.0,
            far_pixels_of_one_tap: 50.0,
            narrow_in_place: 30.0,
            fetched_planes: 0.0,
            strided_row: 100.0,
            planes_at_once: 16.0,
            tile_registers: 0.85,
            share_ns: 34_000.0,
            share_spinning_ns: 10_000.0,
        },
        prefetch_pays: true,
        multiplies_bf16: true,
        cpus: &[Cpu::X86 { vendor: "GenuineIntel", family: 6, models: (0xa7, 0xae) }],
    };

    /// Intel's CPUs with AVX-512, where they have no tile registers or none are asked for.
    ///
    /// The rate of transforms was measured on an Emerald Rapids held to AVX-512. The others are those of
    /// [`Machine::GENERIC`].
    pub const XEON: Machine = Machine {
        name: "xeon",
        isa: Isa::Avx512,
        l2: 1 << 20,
        l3: 32 << 20,
        rates: Rates { transforms: 2.3, ..Machine::GENERIC.rates },
        prefetch_pays: true,
        multiplies_bf16: false,
        cpus: &[Cpu::X86 { vendor: "GenuineIntel", family: 6, models: (0, 0xff) }],
    };

    /// ARM's small cores, which issue instructions in order: Cortex-A53 and A55.
    ///
    /// Not measured. Published tables give them a multiply-add of 128 bits a cycle with a latency of four, and
    /// vector loads of 128 bits that let nothing else issue for two cycles. A clock of 1.8 GHz and the bytes
    /// from L2 and from memory are guesses. The other rates are those of [`Machine::GENERIC`], fitted with as many
    /// vector registers. tract tells these cores on Linux only; elsewhere they get [`Machine::NEOVERSE_N1`].
    pub const CORTEX_A55: Machine = Machine {
        name: "cortex_a55",
        isa: Isa::Neon,
        l2: 128 << 10,
        l3: 0,
        rates: Rates {
            fma_per_ns: 1.8,
            tile_load: 2.0,
            tile_latency: 4.0,
            l2_bytes_per_fma: 8.0,
            l3_share: 0.0,
            bytes_per_fma: 2.0,
            ..Machine::GENERIC.rates
        },
        prefetch_pays: true,
        multiplies_bf16: false,
        cpus: &[Cpu::Aarch64 { kind: "CortexA53" }, Cpu::Aarch64 { kind: "CortexA55" }],
    };

    /// ARM's large cores: Neoverse N1, the Cortex-A76 that it is made from, and every core with 128-bit vectors
    /// that has no row of its own.
    ///
    /// Not measured. Published tables give them two multiply-adds of 128 bits a cycle with a latency of four, two
    /// loads a cycle, and 32 bytes a cycle from L2. A clock of 2.6 GHz and the bytes from memory are guesses. The
    /// other rates are those of [`Machine::GENERIC`].
    pub const NEOVERSE_N1: Machine = Machine {
        name: "neoverse_n1",
        isa: Isa::Neon,
        l2: 1 << 20,
        l3: 4 << 20,
        rates: Rates {
            fma_per_ns: 5.2,
            tile_load: 1.0,
            tile_latency: 8.0,
            l2_bytes_per_fma: 16.0,
            bytes_per_fma: 3.0,
            ..Machine::GENERIC.rates
        },
        prefetch_pays: true,
        multiplies_bf16: false,
        cpus: &[],
    };

    /// Whatever runs a WebAssembly module with 128-bit vectors.
    ///
    /// A module can't ask for CPU or caches. The rate of multiply-adds was measured in V8 on a Zen 3.
    /// The other rates are not measured: they are those of [`Machine::ZEN3`].
    pub const WASM: Machine = Machine {
        name: "wasm",
        isa: Isa::Simd128,
        l2: 512 << 10,
        l3: 0,
        rates: Rates { fma_per_ns: 4.3, l3_share: 0.0, in_tile_order: 1.0, ..Machine::ZEN3.rates },
        prefetch_pays: false,
        multiplies_bf16: false,
        cpus: &[],
    };

    /// An unknown machine with 512 KiB of L2, which application cores have at least.
    ///
    /// Its rates are those that were first fitted to a Zen 4.
    pub const GENERIC: Machine = Machine {
        name: "generic",
        isa: Isa::Portable,
        l2: 512 << 10,
        l3: 0,
        rates: Rates {
            fma_per_ns: 3.97,
            tile_load: 1.0,
            tile_latency: 8.0,
            l2_bytes_per_fma: 20.0,
            transforms: 1.0,
            window_products: 1.0,
            strided_window_products: 1.0,
            interleaved_products: 1.0,
            pixel_products: 1.0,
            row_store: 5.0,
            row_tile_call: 250.0,
            transposed_store: 13.0,
            aliased_transposed_store: 17.0,
            interleaved_row: 20.0,
            far_weights: 3.0,
            l3_share: 0.3125,
            bytes_per_fma: 6.0,
            dense_traffic: 1.0,
            pixel_traffic: 1.0,
            border_tap: 15.0,
            near_in_place: 0.0,
            far_in_place: 1.0,
            far_in_place_again: 2.0,
            aliased_in_place: 8.0,
            aliased_in_place_l2: 40.0,
            far_pixels: 0.0,
            tlb_miss: 0.0,
            in_tile_order: 1.0,
            far_pixels_of_one_tap: 0.0,
            narrow_in_place: 30.0,
            fetched_planes: 0.0,
            strided_row: 100.0,
            planes_at_once: 16.0,
            tile_registers: 1.0,
            share_ns: 34_000.0,
            share_spinning_ns: 5_000.0,
        },
        prefetch_pays: true,
        multiplies_bf16: false,
        cpus: &[],
    };

    /// Every machine with a row. [`Machine::GENERIC`] is last.
    pub const ALL: &[Machine] = &[
        Machine::ZEN3,
        Machine::ZEN4,
        Machine::SAPPHIRE_RAPIDS,
        Machine::GRANITE_RAPIDS,
        Machine::EMERALD_RAPIDS,
        Machine::XEON,
        Machine::CORTEX_A55,
        Machine::NEOVERSE_N1,
        Machine::WASM,
        Machine::GENERIC,
    ];

    /// Returns the machine that this program runs on, with its best instruction set.
    pub fn current() -> &'static Machine {
        static CURRENT: OnceLock<Machine> = OnceLock::new();
        CURRENT.get_or_init(|| Machine::with_isa(Isa::best()))
    }

    /// Returns the machine that this program runs on, for plans with an instruction set.
    ///
    /// This is the row for this CPU with that instruction set, or the row that holds for the
    /// instruction set on any CPU, or else [`Machine::GENERIC`]. The sizes of the caches are those
    /// that tract detects, where it detects any.
    pub fn with_isa(isa: Isa) -> Machine {
        static CPU: OnceLock<Option<ThisCpu>> = OnceLock::new();
        let detected = cache_info();
        let cpu = CPU.get_or_init(this_cpu).as_ref();
        let holds = |row: &&Machine| row.cpus.is_empty() || cpu.is_some_and(|cpu| row.describes(cpu));
        let row = Machine::ALL.iter().filter(|row| row.isa == isa).find(holds).unwrap_or(&Machine::GENERIC);
        let known = |bytes: usize, otherwise: usize| if bytes > 0 { bytes } else { otherwise };
        let (l2, l3) = (known(detected.l2, row.l2), known(detected.l3, row.l3));
        Machine { isa, l2, l3, multiplies_bf16: bf16::is_available(isa), ..*row }
    }

    /// Returns the row with this name.
    ///
    /// # Errors
    /// The name is unknown. The message lists the known names.
    pub fn from_name(name: &str) -> TractResult<Machine> {
        Machine::ALL.iter().copied().find(|machine| machine.name == name).with_context(|| {
            let known: Vec<&str> = Machine::ALL.iter().map(|machine| machine.name).collect();
            format!("machine: machine={name}, the known ones are {}", known.join(", "))
        })
    }

    /// Returns the name of the machine's row.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the machine's best instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Returns the machine's rates.
    pub fn rates(&self) -> &Rates {
        &self.rates
    }

    /// Returns the same row with another instruction set.
    pub fn with_instruction_set(self, isa: Isa) -> Machine {
        Machine { isa, ..self }
    }

    /// Returns the same machine with other rates, as fitting needs.
    pub fn with_rates(self, rates: Rates) -> Machine {
        Machine { rates, ..self }
    }

    /// Returns the bytes that a thread still finds in its caches in the next run.
    pub(crate) fn cached_bytes(&self) -> usize {
        self.l2.max((self.l3 as f64 * self.rates.l3_share) as usize)
    }

    /// Converts an estimate to nanoseconds.
    pub(crate) fn nanoseconds(&self, cost: u64) -> f64 {
        cost as f64 / self.rates.fma_per_ns
    }

    /// Converts nanoseconds to an estimate.
    pub(crate) fn cost_of(&self, nanoseconds: f64) -> u64 {
        (nanoseconds * self.rates.fma_per_ns) as u64
    }

    fn describes(&self, cpu: &ThisCpu) -> bool {
        self.cpus.iter().any(|known| known.describes(cpu))
    }
}

impl Eq for Machine {}

impl Hash for Machine {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.name, self.isa, self.l2, self.l3).hash(state);
    }
}

/// Returns the CPU that the program runs on. None if it is neither x86-64 nor aarch64.
fn this_cpu() -> Option<ThisCpu> {
    #[cfg(target_arch = "x86_64")]
    {
        let cpuid = raw_cpuid::CpuId::new();
        let features = cpuid.get_feature_info()?;
        Some(ThisCpu::X86 {
            vendor: cpuid.get_vendor_info()?.as_str().to_string(),
            family: features.family_id().into(),
            model: features.model_id().into(),
        })
    }
    #[cfg(target_arch = "aarch64")]
    {
        Some(ThisCpu::Aarch64 { kind: format!("{:?}", tract_linalg::arm64::Kind::choose()) })
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_documented;

    #[test]
    fn rows_have_names_of_their_own() -> TractResult<()> {
        for row in Machine::ALL {
            assert_eq!(Machine::from_name(row.name())?, *row);
        }
        let error = Machine::from_name("cray").map(|_| ()).expect_err("no such row").to_string();
        assert_eq!(
            error,
            "machine: machine=cray, the known ones are zen3, zen4, sapphire_rapids, granite_rapids, emerald_rapids, \
             xeon, cortex_a55, neoverse_n1, wasm, generic"
        );
        Ok(())
    }

    #[test]
    fn rates_are_found_by_name() {
        let rates = Machine::ZEN4.rates;
        for name in Rates::NAMES {
            let changed = rates.with(name, 123.0);
            assert_eq!(changed.get(name), Some(123.0));
            assert_ne!(changed, rates);
            assert_eq!(rates.with(name, f64::NAN), rates);
            assert_eq!(rates.with(name, -1.0), rates);
        }
        assert_eq!(rates.get("none"), None);
        assert_eq!(rates.with("none", 1.0), rates);
    }

    #[test]
    fn cpus_are_told_apart() {
        let amd = |model| ThisCpu::X86 { vendor: "AuthenticAMD".to_string(), family: 25, model };
        let (genoa, milan) = (amd(0x11), amd(0x01));
        assert!(Machine::ZEN4.describes(&genoa));
        assert!(!Machine::ZEN4.describes(&milan));
        assert!(!Machine::SAPPHIRE_RAPIDS.describes(&genoa));
        assert!(!Machine::GENERIC.describes(&genoa));
        let arm = |kind: &str| ThisCpu::Aarch64 { kind: kind.to_string() };
        assert!(Machine::CORTEX_A55.describes(&arm("CortexA53")) && Machine::CORTEX_A55.describes(&arm("CortexA55")));
        assert!(!Machine::CORTEX_A55.describes(&arm("Neoverse")) && !Machine::CORTEX_A55.describes(&genoa));
    }

    #[test]
    fn some_instruction_sets_have_a_row_on_any_cpu() {
        assert_eq!(Machine::with_isa(Isa::Avx2).name(), "zen3");
        assert_eq!(Machine::with_isa(Isa::Portable).name(), "generic");
        let arm = Machine::with_isa(Isa::Neon);
        assert!(["cortex_a55", "neoverse_n1"].contains(&arm.name()), "{}", arm.name());
    }

    #[test]
    fn this_machine_has_caches() {
        let machine = Machine::current();
        assert!(machine.l2 >= 64 << 10, "l2={}", machine.l2);
        assert!(machine.cached_bytes() >= machine.l2);
        assert_eq!(machine.isa(), Isa::best());
    }

    #[test]
    fn the_least_shared_times_are_documented() {
        let micros = |ns: f64| ns / 1000.0;
        let [sapphire, granite] = [Machine::SAPPHIRE_RAPIDS, Machine::GRANITE_RAPIDS]
            .map(|machine| [machine.rates.share_ns, machine.rates.share_spinning_ns].map(micros));
        assert_eq!(sapphire[0], sapphire[1]);
        for other in Machine::ALL.iter().filter(|machine| machine.name != Machine::SAPPHIRE_RAPIDS.name) {
            let (least, spinning) = (micros(other.rates.share_ns), micros(other.rates.share_spinning_ns));
            let [own, _] = sapphire;
            assert_documented(
                "src/lib.rs",
                &format!("Layers below {least} us by estimate, or {own} us on a Sapphire Rapids with AMX, stay on"),
            );
            assert_documented(
                "docs/knobs.md",
                &format!(
                    "share layers from {least} µs on, by estimate, or from {own} µs on a Sapphire Rapids with AMX."
                ),
            );
            let [_, of_granite] = granite;
            for (file, us) in [("src/lib.rs", "us"), ("docs/knobs.md", "µs")] {
                let words = match other.name == Machine::GRANITE_RAPIDS.name {
                    true => format!("a Granite Rapids shares layers from {of_granite} {us} on"),
                    false => format!("and other machines than these two from {spinning} {us} on."),
                };
                assert_documented(file, &words);
            }
        }
    }
}
