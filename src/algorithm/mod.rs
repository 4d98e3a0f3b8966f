//! The algorithms, one a file. None knows of ONNX, and none holds unsafe code.

pub mod amx;
pub(crate) mod blocked;
pub mod col2im;
pub mod depthwise_pixels;
pub mod depthwise_rows;
pub mod direct_channels;
pub mod direct_positions;
pub mod gemv;
pub mod overlap_add;
pub(crate) mod pointwise;
pub mod reference;
pub mod winograd;

use crate::element::{Element, compute_bytes};
use crate::estimate::machine::Machine;
use crate::geometry::Axes;
use crate::kernel::KernelSizes;
use crate::layout::filter::{FilterLayout, PackedFilter};
use crate::layout::taps::too_many_phases;
use crate::output::epilogue::Epilogue;
use crate::simd::isa::Isa;
use crate::spec::Problem;
use std::cell::OnceCell;
use std::fmt;
use tract_core::internal::*;

/// What is planned for: computed once, and handed to every algorithm.
pub(crate) struct Query<'a> {
    pub problem: &'a Problem,
    /// The type that the problem is computed as: see [`integers`](crate::integers).
    pub datum_type: DatumType,
    pub isa: Isa,
    /// The layout that the filter is packed in already.
    pub layout: Option<&'a FilterLayout>,
    pub machine: &'a Machine,
    /// A variant that algorithms do not propose, so that it can be measured what it is worth.
    pub left_out: Option<&'a str>,
    /// The sizes of the kernels of `isa` for `datum_type`.
    pub sizes: KernelSizes,
    /// Bytes of an element of the type that sums are made in.
    pub element: usize,
    axes: OnceCell<Result<Axes, String>>,
}

impl<'a> Query<'a> {
    pub fn new(
        problem: &'a Problem,
        datum_type: DatumType,
        isa: Isa,
        layout: Option<&'a FilterLayout>,
        machine: &'a Machine,
        left_out: Option<&'a str>,
    ) -> Query<'a> {
        let (sizes, element) = (KernelSizes::new(datum_type, isa), compute_bytes(datum_type));
        Query { problem, datum_type, isa, layout, machine, left_out, sizes, element, axes: OnceCell::new() }
    }

    /// Whether a variant of an algorithm must not be proposed.
    pub fn leaves_out(&self, variant: &str) -> bool {
        self.left_out == Some(variant)
    }

    /// The phases of all spatial axes, at least two, outermost first; or why they can't be enumerated.
    pub fn axes(&self) -> Result<&Axes, String> {
        let axes = self.axes.get_or_init(|| match too_many_phases(self.problem) {
            Some(reason) => Err(reason),
            None => Ok(Axes::new(self.problem)),
        });
        axes.as_ref().map_err(String::clone)
    }
}

/// One way to compute a convolution. A value of the type is a decision: the parameters for one problem, which can be
/// compared and printed, and hold nothing that is built for a run.
pub(crate) trait Algorithm: Sized {
    /// What runs read and what is built once for a plan: lists of taps, for example.
    type Tables: Send + Sync + 'static;

    /// Whether it computes the folded problem ([`Problem::folded`]), or the problem as the spec has it.
    const FOLDS: bool = true;

    /// Whether this CPU has what all its kernels need.
    fn is_available() -> bool {
        true
    }

    /// Decides, or says why not, in words that `explain` prints.
    fn propose(query: &Query) -> Result<Self, String>;

    /// The estimated cost in vector multiply-adds. None for what runs only where nothing else does.
    fn cost(&self) -> Option<u64>;

    /// Which variant of the algorithm it is, where there are several.
    fn variant(&self) -> &'static str {
        ""
    }

    /// Bytes that a run takes on one thread, besides operands and output. `element` are those of an element of sums.
    fn working_bytes(&self, problem: &Problem, element: usize) -> usize;

    /// The layout that the filter must be packed in.
    fn filter_layout(&self) -> FilterLayout;

    /// The decision in words.
    fn explain(&self) -> String;

    /// Builds what runs read. Vectors of sums have `lanes` elements.
    ///
    /// # Errors
    /// When the memory can't be had.
    fn tables(&self, problem: &Problem, lanes: usize) -> TractResult<Self::Tables>;

    /// Writes the whole output, in the problem's output shape.
    ///
    /// # Errors
    /// When working memory can't be had.
    fn run<E: Element>(
        &self,
        tables: &Self::Tables,
        problem: &Problem,
        isa: Isa,
        filter: &PackedFilter,
        operands: &Operands<E>,
        output: &mut [E],
    ) -> TractResult<()>;
}

/// The ordered list of algorithms, and all that depends on which there are.
macro_rules! algorithms {
    ($($(#[doc = $doc:literal])+ $name:ident = $word:literal: $file:ident;)+) => {
        /// The algorithms, in the order in which they are tried.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Strategy {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Strategy {
            /// Every algorithm, best first, the reference last.
            pub const ALL: &[Strategy] = &[$(Strategy::$name),+];

            /// Its name, as used by the knob `TRACT_DECONV_STRATEGY` and in `explain`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Strategy::$name => $word,)+
                }
            }

            /// Whether this CPU has what all its kernels need.
            pub fn is_available(self) -> bool {
                match self {
                    $(Strategy::$name => $file::$name::is_available(),)+
                }
            }

            /// Its decision, or why it declines.
            pub(crate) fn propose(self, query: &Query) -> Result<Decision, String> {
                match self {
                    $(Strategy::$name => $file::$name::propose(query).map(Decision::$name),)+
                }
            }
        }

        /// An algorithm with everything it decided.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) enum Decision {
            $($name($file::$name),)+
        }

        /// What runs of a decision read: see [`Algorithm::Tables`].
        pub(crate) enum Tables {
            $($name(<$file::$name as Algorithm>::Tables),)+
        }

        impl Decision {
            /// The algorithm.
            pub fn strategy(&self) -> Strategy {
                match self {
                    $(Decision::$name(_) => Strategy::$name,)+
                }
            }

            /// As [`Algorithm::FOLDS`].
            pub fn folds(&self) -> bool {
                match self {
                    $(Decision::$name(_) => $file::$name::FOLDS,)+
                }
            }

            /// As [`Algorithm::cost`].
            pub fn cost(&self) -> Option<u64> {
                match self {
                    $(Decision::$name(algorithm) => algorithm.cost(),)+
                }
            }

            /// As [`Algorithm::variant`].
            pub fn variant(&self) -> &'static str {
                match self {
                    $(Decision::$name(algorithm) => algorithm.variant(),)+
                }
            }

            /// As [`Algorithm::working_bytes`].
            pub fn working_bytes(&self, problem: &Problem, element: usize) -> usize {
                match self {
                    $(Decision::$name(algorithm) => algorithm.working_bytes(problem, element),)+
                }
            }

            /// As [`Algorithm::filter_layout`].
            pub fn filter_layout(&self) -> FilterLayout {
                match self {
                    $(Decision::$name(algorithm) => algorithm.filter_layout(),)+
                }
            }

            /// As [`Algorithm::explain`].
            pub fn explain(&self) -> String {
                match self {
                    $(Decision::$name(algorithm) => algorithm.explain(),)+
                }
            }

            /// As [`Algorithm::tables`].
            pub fn tables(&self, problem: &Problem, lanes: usize) -> TractResult<Tables> {
                match self {
                    $(Decision::$name(algorithm) => algorithm.tables(problem, lanes).map(Tables::$name),)+
                }
            }

            /// As [`Algorithm::run`], with what [`Decision::tables`] gave.
            pub fn run<E: Element>(
                &self,
                tables: &Tables,
                problem: &Problem,
                isa: Isa,
                filter: &PackedFilter,
                operands: &Operands<E>,
                output: &mut [E],
            ) -> TractResult<()> {
                match (self, tables) {
                    $((Decision::$name(algorithm), Tables::$name(tables)) => {
                        algorithm.run(tables, problem, isa, filter, operands, output)
                    })+
                    _ => bail!("layer: strategy={}, its tables are another's", self.strategy()),
                }
            }
        }
    };
}

algorithms! {
    /// One input channel a group, lanes are positions of a row: sums of shifted rows.
    DepthwiseRows = "depthwise_rows": depthwise_rows;
    /// One input channel a group, and narrow groups of channels-last data, lanes are channels.
    DepthwisePixels = "depthwise_pixels": depthwise_pixels;
    /// One input position: a matrix times a vector, which streams the weights once.
    Gemv = "gemv": gemv;
    /// Few output channels and long kernels on one axis: each position's products are added where they overlap.
    OverlapAdd = "overlap_add": overlap_add;
    /// Few output channels: one matrix product for all taps, gathered from a ring of rows.
    Col2im = "col2im": col2im;
    /// Each phase as a small dense convolution, in products of tile registers.
    Amx = "amx": amx;
    /// Each phase as a small dense convolution, in transformed tiles that take fewer products.
    Winograd = "winograd": winograd;
    /// Each phase as a small dense convolution, lanes are output channels.
    DirectChannels = "direct_channels": direct_channels;
    /// Each phase as a small dense convolution, lanes are positions.
    DirectPositions = "direct_positions": direct_positions;
    /// The definition, one output element at a time.
    Reference = "reference": reference;
}

impl Strategy {
    /// The algorithm of a name.
    ///
    /// # Errors
    /// An unknown name; the message lists the known ones.
    pub fn from_name(name: &str) -> TractResult<Strategy> {
        Strategy::ALL.iter().copied().find(|s| s.name() == name).with_context(|| {
            let known: Vec<&str> = Strategy::ALL.iter().map(|s| s.name()).collect();
            format!("strategy: strategy={name}, the known ones are {}", known.join(", "))
        })
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What every algorithm reads besides the filter.
pub(crate) struct Operands<'a, E: Element> {
    /// In the problem's input shape.
    pub input: &'a [E],
    /// One value per output channel, over all groups.
    pub bias: Option<&'a [E]>,
    /// What is applied to the sums before they are stored.
    pub epilogue: Epilogue<'a, E>,
}
