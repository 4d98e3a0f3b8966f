//! The algorithms, one per file or folder. None depends on ONNX, and none contains unsafe code.

pub(crate) mod blocked;
pub(crate) mod chains;
pub mod col2im;
pub(crate) mod depthwise_bytes;
pub mod depthwise_pixels;
pub mod depthwise_rows;
pub mod direct_channels;
pub mod direct_positions;
pub mod gemv;
pub mod indirect;
pub mod matrix_pixels;
pub mod matrix_planes;
pub mod overlap_add;
pub(crate) mod pointwise;
pub mod reference;
pub mod winograd;

use crate::compute::Grouped;
use crate::element::{Element, compute_bytes};
use crate::estimate::cost::MatrixUnit;
use crate::estimate::machine::Machine;
use crate::geometry::Axes;
use crate::kernel::KernelSizes;
use crate::layout::filter::{FilterLayout, PackedFilter};
use crate::layout::input::Input;
use crate::layout::taps::too_many_phases;
use crate::output::epilogue::Epilogue;
use crate::precision::Precision;
use crate::simd::bf16;
use crate::simd::isa::Isa;
use crate::spec::Problem;
use std::cell::OnceCell;
use std::fmt;
use tract_core::internal::*;

/// The inputs of planning, computed once and passed to every algorithm.
pub(crate) struct Query<'a> {
    pub problem: &'a Problem,
    /// The element type of the computation: see [`integers`](crate::integers).
    pub datum_type: DatumType,
    pub isa: Isa,
    /// The layout that the filter is already packed in.
    pub layout: Option<&'a FilterLayout>,
    pub machine: &'a Machine,
    /// Variants that algorithms must not propose, so that their benefit can be measured.
    pub left_out: &'a [&'static str],
    /// Whether the error of a result must depend on the inputs of its own taps only.
    pub local_accuracy: bool,
    /// The most bytes of a filter's transformed weights.
    pub transformed_bytes: usize,
    /// Whether the channels of the input come in several tensors.
    pub in_parts: bool,
    /// The precision of algorithms that have kernels for it. Others compute exactly.
    pub precision: Precision,
    /// How many integers an element holds, if several.
    pub grouped: Option<Grouped>,
    /// The sizes of the kernels of `isa` for `datum_type`.
    pub sizes: KernelSizes,
    /// Bytes per element of the accumulation type.
    pub element: usize,
    axes: OnceCell<Result<Axes, String>>,
}

/// What restricts proposals: fields of [`Query`].
pub(crate) struct Restrictions<'a> {
    pub layout: Option<&'a FilterLayout>,
    pub left_out: &'a [&'static str],
    pub local_accuracy: bool,
    pub transformed_bytes: usize,
    pub in_parts: bool,
    pub precision: Precision,
    pub grouped: Option<Grouped>,
}

impl<'a> Query<'a> {
    pub fn new(
        problem: &'a Problem,
        datum_type: DatumType,
        isa: Isa,
        machine: &'a Machine,
        Restrictions { layout, left_out, local_accuracy, transformed_bytes, in_parts, precision, grouped }: Restrictions<'a>,
    ) -> Query<'a> {
        let (sizes, element) = (KernelSizes::new(datum_type, grouped, isa), compute_bytes(datum_type, grouped));
        Query {
            problem,
            datum_type,
            isa,
            layout,
            machine,
            left_out,
            local_accuracy,
            transformed_bytes,
            in_parts,
            precision,
            grouped,
            sizes,
            element,
            axes: OnceCell::new(),
        }
    }

    /// What multiplies limbs of the operands.
    ///
    /// # Errors
    /// Nothing does in this precision.
    pub fn matrix_unit(&self) -> Result<MatrixUnit, String> {
        let &Query { isa, precision, machine, .. } = self;
        if isa == Isa::Amx {
            return Ok(MatrixUnit::TileRegisters);
        }
        if precision == Precision::Bf16 && machine.multiplies_bf16 && bf16::is_possible(isa) {
            return Ok(MatrixUnit::Vectors);
        }
        Err(match precision {
            Precision::Exact => format!("{isa} has no tile registers"),
            rounded => format!("{isa} has no tile registers, and its vectors multiply no pairs of {}", rounded.name()),
        })
    }

    /// Returns the bytes of the input, of all images and groups.
    pub fn input_bytes(&self) -> usize {
        self.problem.input_shape().iter().fold(self.element, |bytes, dim| bytes.saturating_mul(*dim))
    }

    /// Whether vectors hold elements of the tensors as they are.
    pub fn has_same_element(&self) -> bool {
        self.grouped.is_some() || matches!(self.datum_type, DatumType::F32 | DatumType::F64)
    }

    /// Whether a variant of an algorithm must not be proposed.
    pub fn leaves_out(&self, variant: &str) -> bool {
        self.left_out.contains(&variant)
    }

    /// The parameters of the layout that the filter is packed in, without its transformed weights.
    /// None if the algorithm may choose.
    ///
    /// # Errors
    /// `parameters` returns none, as the algorithm does not read this layout. The message names it.
    pub fn forced<T>(&self, parameters: impl FnOnce(&FilterLayout) -> Option<T>) -> Result<Option<T>, String> {
        let packed = |layout: &FilterLayout| {
            parameters(&layout.untransformed()).ok_or_else(|| format!("the filter is packed in {layout}"))
        };
        self.layout.map(packed).transpose()
    }

    /// The phases of all spatial axes, at least two, outermost first.
    ///
    /// # Errors
    /// The phases are too many to enumerate. The message gives the reason.
    pub fn axes(&self) -> Result<&Axes, String> {
        let axes = self.axes.get_or_init(|| match too_many_phases(self.problem) {
            Some(reason) => Err(reason),
            None => Ok(Axes::new(self.problem)),
        });
        axes.as_ref().map_err(String::clone)
    }
}

/// An algorithm that computes a convolution.
///
/// A value of an implementing type is a decision: the algorithm's parameters for one problem.
/// Decisions can be compared and printed. They hold no tables or buffers.
pub(crate) trait Algorithm: Sized {
    /// The tables that are built once per plan and read by every run, such as lists of taps.
    type Tables: Send + Sync + 'static;

    /// Whether the algorithm computes the folded problem ([`Problem::folded`]). Otherwise it
    /// computes the problem as the spec describes it.
    const FOLDS: bool = true;

    /// Whether the algorithm reads an input whose channels are in several tensors. For others the
    /// tensors are joined first.
    const READS_PARTS: bool = false;

    /// Whether this CPU supports all kernels that the algorithm needs in a precision. One without kernels
    /// of its own for it computes exactly.
    fn is_available_in(_precision: Precision) -> bool {
        true
    }

    /// Decides on the parameters for a problem.
    ///
    /// # Errors
    /// The reason why the algorithm declines, in words that `explain` prints.
    fn propose(query: &Query) -> Result<Self, String>;

    /// The estimated cost in vector multiply-adds. None for an algorithm that is chosen only if all
    /// others decline.
    fn cost(&self) -> Option<u64>;

    /// The name of the chosen variant. Empty if the algorithm has only one.
    fn variant(&self) -> &'static str {
        ""
    }

    /// Whether the filter, packed for this decision, can be read for every size of the input: by this algorithm, or by
    /// another that reads the same layout.
    fn layout_is_for_all_sizes(&self, _query: &Query) -> bool {
        true
    }

    /// The precision of the products.
    fn precision(&self) -> Precision {
        Precision::Exact
    }

    /// Whether the rounding error of a result scales with the largest input of a tile. Otherwise it
    /// scales with the inputs of the result's own taps.
    fn mixes_results(&self) -> bool {
        false
    }

    /// Bytes of working memory per thread of a run, without operands and output. `element` is the
    /// size of an accumulator in bytes.
    fn working_bytes(&self, problem: &Problem, element: usize) -> usize;

    /// The layout that the filter must be packed in.
    fn filter_layout(&self) -> FilterLayout;

    /// The decision in words.
    fn explain(&self) -> String;

    /// Builds the tables for runs. Vectors of accumulators have `lanes` elements.
    ///
    /// # Errors
    /// Failure to allocate memory.
    fn tables(&self, problem: &Problem, lanes: usize) -> TractResult<Self::Tables>;

    /// Writes the whole output, in the problem's output shape.
    ///
    /// # Errors
    /// Failure to allocate working memory.
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

/// Declares the ordered list of algorithms and everything that enumerates it.
macro_rules! algorithms {
    ($($(#[doc = $doc:literal])+ $name:ident = $word:literal: $file:ident;)+) => {
        /// The algorithms, in the order in which they are tried.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Strategy {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Strategy {
            /// Every algorithm. The order breaks ties between equal costs. The reference is last.
            pub const ALL: &[Strategy] = &[$(Strategy::$name),+];

            /// The name, as in the knob `TRACT_DECONV_STRATEGY` and in `explain`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Strategy::$name => $word,)+
                }
            }

            /// Whether this CPU supports all kernels that the algorithm needs to compute exactly.
            pub fn is_available(self) -> bool {
                self.is_available_in(Precision::Exact)
            }

            /// Whether this CPU supports all kernels that the algorithm needs in a precision. One without
            /// kernels of its own for it computes exactly.
            pub fn is_available_in(self, precision: Precision) -> bool {
                match self {
                    $(Strategy::$name => $file::$name::is_available_in(precision),)+
                }
            }

            /// The algorithm's decision, or the reason why it declines.
            pub(crate) fn propose(self, query: &Query) -> Result<Decision, String> {
                match self {
                    $(Strategy::$name => $file::$name::propose(query).map(Decision::$name),)+
                }
            }
        }

        /// An algorithm with all of its parameters.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) enum Decision {
            $($name($file::$name),)+
        }

        /// The tables of a decision: see [`Algorithm::Tables`].
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

            /// As [`Algorithm::READS_PARTS`].
            pub fn reads_parts(&self) -> bool {
                match self {
                    $(Decision::$name(_) => $file::$name::READS_PARTS,)+
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

            /// As [`Algorithm::layout_is_for_all_sizes`].
            pub fn layout_is_for_all_sizes(&self, query: &Query) -> bool {
                match self {
                    $(Decision::$name(algorithm) => algorithm.layout_is_for_all_sizes(query),)+
                }
            }

            /// As [`Algorithm::precision`].
            pub fn precision(&self) -> Precision {
                match self {
                    $(Decision::$name(algorithm) => algorithm.precision(),)+
                }
            }

            /// As [`Algorithm::mixes_results`].
            pub fn mixes_results(&self) -> bool {
                match self {
                    $(Decision::$name(algorithm) => algorithm.mixes_results(),)+
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

            /// As [`Algorithm::run`]. `tables` are those that [`Decision::tables`] returned.
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
    /// Sums of shifted rows, for one input channel per group. Lanes are positions of a row.
    DepthwiseRows = "depthwise_rows": depthwise_rows;
    /// Sums of weighted pixels, for one input channel per group or narrow groups of channels-last
    /// data. Lanes are channels.
    DepthwisePixels = "depthwise_pixels": depthwise_pixels;
    /// A matrix-vector product that streams the weights once, for a single input position.
    Gemv = "gemv": gemv;
    /// The products of each input position are added to the output where they overlap. For few
    /// output channels and long kernels on one axis.
    OverlapAdd = "overlap_add": overlap_add;
    /// One matrix product for all taps, whose results are accumulated into output rows from a ring
    /// of rows. For few output channels.
    Col2im = "col2im": col2im;
    /// Each phase as a small dense convolution in tile registers, or in vectors that multiply pairs of
    /// bf16. Rows of tiles are positions.
    MatrixPixels = "matrix_pixels": matrix_pixels;
    /// The same products for one phase and channels-first data. Columns of tiles are positions.
    MatrixPlanes = "matrix_planes": matrix_planes;
    /// Each phase as a small dense convolution by Winograd's minimal filtering.
    Winograd = "winograd": winograd;
    /// Each phase as a small dense convolution. Lanes are output channels.
    DirectChannels = "direct_channels": direct_channels;
    /// Each phase as a small dense convolution whose positions read pixels through lists, so that
    /// only taps inside the input are multiplied. Lanes are output channels.
    Indirect = "indirect": indirect;
    /// Each phase as a small dense convolution. Lanes are positions.
    DirectPositions = "direct_positions": direct_positions;
    /// The definition of the operation, one output element at a time.
    Reference = "reference": reference;
}

impl Strategy {
    /// Returns the algorithm with this name.
    ///
    /// # Errors
    /// The name is unknown. The message lists the known names.
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

/// The operands of an algorithm besides the filter.
pub(crate) struct Operands<'a, E: Element> {
    /// The input, in the problem's input shape.
    pub input: Input<'a, E>,
    /// One value per output channel, over all groups.
    pub bias: Option<&'a [E]>,
    /// The steps that are applied to the sums before they are stored.
    pub epilogue: Epilogue<'a, E>,
}
