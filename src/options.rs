//! [`Options`]: how convolutions are planned and run, given in code where a model is loaded or
//! transformed.

use crate::algorithm::Strategy;
use crate::estimate::machine::Machine;
use crate::memory::set_pool_bytes;
use crate::parallel::{set_share_from, set_spin_time};
use crate::plan::{PlanOptions, Tuning};
use crate::precision::Precision;
use crate::simd::isa::Isa;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;
use tract_hir::internal::*;
use tract_onnx::model::{Onnx, ParsingContext};
use tract_onnx::pb::NodeProto;

/// The options of a model's convolutions.
///
/// [`WithDeconvOptions`] takes them where a model is loaded, and so do the transforms `deconv` and
/// `conv`. The [knobs](crate::knobs) decide an option that is `None`, and the planner decides it
/// where the knob is not set.
///
/// The `tract` crate takes options as JSON, with the transform's name:
/// `model.transform(r#"{"name": "deconv", "strategy": "direct_positions", "fusion": false}"#)`.
///
/// ```
/// use tract_deconv::Options;
///
/// let options = Options::default().with_strategy("direct_positions").with_memory_limit(1 << 30);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Options {
    /// The name of the only strategy to use.
    pub strategy: Option<String>,
    /// The name of the only instruction set to use.
    pub isa: Option<String>,
    /// Plan by the row of this machine, by its name, instead of by that of the CPU at hand.
    pub machine: Option<String>,
    /// Whether the error of a result must depend on the inputs of its own taps only: as
    /// [`PlanOptions::local_accuracy`].
    pub local_accuracy: bool,
    /// The most bytes of a filter's weights that are transformed when it is packed: as
    /// [`PlanOptions::transformed_bytes`].
    pub transformed_bytes: Option<usize>,
    /// The precision of the arithmetic, by its name: `exact`, `bf16` or `f16`. `exact` if not set.
    ///
    /// [`Precision`] describes each. A layer without kernels for it stays exact, and
    /// [`explain`](crate::explain()) gives the reason.
    pub precision: Option<String>,
    /// Patterns of the names of nodes that stay exact, whatever the precision.
    ///
    /// A pattern must match a whole name, in the node's own graph. An asterisk stands for any
    /// characters.
    pub exact_nodes: Vec<String>,
    /// How strategies are chosen, by its name: `estimated` or `measured`.
    pub tuning: Option<String>,
    /// The file that measured choices are read from and written to.
    pub tuning_file: Option<PathBuf>,
    /// Whether neighbouring operators may be folded into a convolution, and conditions around
    /// convolutions may be replaced.
    pub fusion: bool,
    /// The most bytes of an output, and of the working memory that a thread takes for it, as in
    /// [`PlanOptions::memory_limit`].
    pub memory_limit: Option<usize>,
    /// The least estimated cost, in vector multiply-adds, of a layer that threads share.
    ///
    /// It holds for the whole process: see [`set_share_from`].
    pub share_from: Option<u64>,
    /// How many microseconds a thread spins after it has helped with a layer. With 0 no thread
    /// spins.
    ///
    /// It holds for the whole process: see [`set_spin_time`].
    pub spin_us: Option<u64>,
    /// How many bytes of unused blocks the pool keeps for later outputs. With 0 it keeps none.
    ///
    /// It holds for the whole process: see [`set_pool_bytes`].
    pub pool_bytes: Option<usize>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            strategy: None,
            isa: None,
            machine: None,
            local_accuracy: false,
            transformed_bytes: None,
            precision: None,
            exact_nodes: vec![],
            tuning: None,
            tuning_file: None,
            fusion: true,
            memory_limit: None,
            share_from: None,
            spin_us: None,
            pool_bytes: None,
        }
    }
}

impl Options {
    /// Uses this strategy only. An unknown name is refused where the options are used.
    pub fn with_strategy(self, name: impl Into<String>) -> Options {
        Options { strategy: Some(name.into()), ..self }
    }

    /// Uses this instruction set only.
    pub fn with_isa(self, isa: Isa) -> Options {
        Options { isa: Some(isa.name().into()), ..self }
    }

    /// Sets the machine whose row plans are made by.
    pub fn with_machine(self, name: impl Into<String>) -> Options {
        Options { machine: Some(name.into()), ..self }
    }

    /// Turns local accuracy on or off.
    pub fn with_local_accuracy(self, local_accuracy: bool) -> Options {
        Options { local_accuracy, ..self }
    }

    /// Sets the most bytes of a filter's weights that are transformed when it is packed.
    pub fn with_transformed_bytes(self, bytes: usize) -> Options {
        Options { transformed_bytes: Some(bytes), ..self }
    }

    /// Sets the precision of the arithmetic.
    pub fn with_precision(self, precision: Precision) -> Options {
        Options { precision: Some(precision.name().into()), ..self }
    }

    /// Sets the patterns of the names of nodes that stay exact.
    pub fn with_exact_nodes(self, patterns: impl IntoIterator<Item = impl Into<String>>) -> Options {
        Options { exact_nodes: patterns.into_iter().map(Into::into).collect(), ..self }
    }

    /// Sets how strategies are chosen.
    pub fn with_tuning(self, tuning: Tuning) -> Options {
        Options { tuning: Some(tuning.name().into()), ..self }
    }

    /// Sets the file that measured choices are read from and written to.
    pub fn with_tuning_file(self, path: impl Into<PathBuf>) -> Options {
        Options { tuning_file: Some(path.into()), ..self }
    }

    /// Turns fusion on or off.
    pub fn with_fusion(self, fusion: bool) -> Options {
        Options { fusion, ..self }
    }

    /// Limits the bytes of an output, and of the working memory of a thread.
    pub fn with_memory_limit(self, bytes: usize) -> Options {
        Options { memory_limit: Some(bytes), ..self }
    }

    /// Lets threads share layers of this estimated cost and more, in the whole process.
    pub fn with_share_from(self, cost: u64) -> Options {
        Options { share_from: Some(cost), ..self }
    }

    /// Lets helping threads spin for this many microseconds, in the whole process.
    pub fn with_spin_us(self, micros: u64) -> Options {
        Options { spin_us: Some(micros), ..self }
    }

    /// Lets the pool keep this many bytes for later outputs, in the whole process.
    pub fn with_pool_bytes(self, bytes: usize) -> Options {
        Options { pool_bytes: Some(bytes), ..self }
    }

    /// Sets the options of the whole process. An option that is `None` changes nothing.
    pub(crate) fn set_process(&self) {
        if self.share_from.is_some() {
            set_share_from(self.share_from);
        }
        if self.spin_us.is_some() {
            set_spin_time(self.spin_us.map(Duration::from_micros));
        }
        if let Some(bytes) = self.pool_bytes {
            set_pool_bytes(bytes);
        }
    }
}

/// [`Options`] with their names resolved, less those of the whole process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Settings {
    pub planning: PlanOptions,
    /// As [`Options::exact_nodes`].
    pub exact_nodes: Vec<String>,
    pub fusion: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { planning: PlanOptions::default(), exact_nodes: vec![], fusion: true }
    }
}

impl Options {
    /// Resolves the names.
    ///
    /// # Errors
    /// An unknown name.
    pub(crate) fn settings(&self) -> TractResult<Settings> {
        if let Some(path) = &self.tuning_file {
            let is_a_line = path.to_str().is_some_and(|path| !path.contains('\n'));
            ensure!(is_a_line, "tuning file: path={}, utf-8 on one line is needed", path.display());
        }
        for pattern in &self.exact_nodes {
            ensure!(!pattern.contains('\n'), "exact nodes: pattern={pattern:?}, one line is needed");
        }
        let isa = self.isa.as_deref().map(Isa::from_name).transpose()?;
        let of_row = |name: &str| {
            let row = Machine::from_name(name)?;
            TractResult::Ok(row.with_instruction_set(Isa::of_plan(isa)?))
        };
        let planning = PlanOptions {
            strategy: self.strategy.as_deref().map(Strategy::from_name).transpose()?,
            isa,
            machine: self.machine.as_deref().map(of_row).transpose()?,
            local_accuracy: self.local_accuracy,
            transformed_bytes: self.transformed_bytes,
            precision: self.precision.as_deref().map(Precision::from_name).transpose()?,
            tuning: self.tuning.as_deref().map(Tuning::from_name).transpose()?,
            tuning_file: self.tuning_file.clone(),
            memory_limit: self.memory_limit,
            ..PlanOptions::default()
        };
        Ok(Settings { planning, exact_nodes: self.exact_nodes.clone(), fusion: self.fusion })
    }
}

/// Gives a framework of tract's [`Options`] for the convolutions that it loads.
///
/// `tract_onnx::onnx()` takes them, and with the feature `nnef` `tract_nnef::nnef()` does.
///
/// The order with [`WithDeconv`](crate::WithDeconv) and [`WithConv`](crate::WithConv) does not
/// matter. The options hold for every model that the framework loads, by any method, and stay with
/// the loaded model. Options of the whole process hold from this call on.
///
/// A NNEF file holds no options but `fusion`. If either the file or the options turn fusion off, it
/// is off.
///
/// ```
/// use tract_deconv::{Options, WithDeconv, WithDeconvOptions};
///
/// # fn main() -> tract_onnx::prelude::TractResult<()> {
/// let options = Options::default().with_fusion(false);
/// let onnx = tract_onnx::onnx().with_deconv().with_deconv_options(&options)?;
/// # Ok(())
/// # }
/// ```
pub trait WithDeconvOptions {
    /// Sets the options. They replace earlier ones.
    ///
    /// # Errors
    /// An unknown name.
    fn set_deconv_options(&mut self, options: &Options) -> TractResult<()>;

    /// Returns the framework with the options.
    ///
    /// # Errors
    /// An unknown name.
    fn with_deconv_options(self, options: &Options) -> TractResult<Self>
    where
        Self: Sized;
}

impl WithDeconvOptions for Onnx {
    fn set_deconv_options(&mut self, options: &Options) -> TractResult<()> {
        let settings = options.settings()?;
        options.set_process();
        let register = &mut self.op_register.0;
        register.retain(|name, _| !name.starts_with(ENTRY));
        register.insert(written(&settings), unimplemented);
        Ok(())
    }

    fn with_deconv_options(mut self, options: &Options) -> TractResult<Onnx> {
        self.set_deconv_options(options)?;
        Ok(self)
    }
}

/// The beginning of the name of the register's entry that carries the settings.
///
/// Builders of operators are plain functions without state. With a node, they get the framework
/// only. Its register of operators therefore carries the settings, in the name of an entry. No
/// operator has a name that begins like this. NNEF's list of registries carries them likewise.
pub(crate) const ENTRY: &str = "tract-deconv options:";

/// Builds what tract builds for an operator without an entry.
fn unimplemented(_: &ParsingContext, node: &NodeProto) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)> {
    let op = tract_hir::ops::unimpl::UnimplementedOp::new(node.output.len(), &*node.op_type, format!("{node:?}"));
    Ok((op.into(), vec![]))
}

/// Returns the settings as a name that begins with [`ENTRY`].
pub(crate) fn written(settings: &Settings) -> String {
    let mut text = format!("{ENTRY}\nfusion={}", settings.fusion);
    let PlanOptions {
        strategy,
        isa,
        machine,
        local_accuracy,
        transformed_bytes,
        precision,
        tuning,
        tuning_file,
        memory_limit,
        ..
    } = &settings.planning;
    let words = [
        ("machine", machine.map(|machine| machine.name().to_string())),
        ("local_accuracy", local_accuracy.then(|| "true".to_string())),
        ("transformed_bytes", transformed_bytes.map(|bytes| bytes.to_string())),
        ("precision", precision.map(|precision| precision.name().to_string())),
        ("tuning", tuning.map(|tuning| tuning.name().to_string())),
        ("tuning_file", tuning_file.as_ref().map(|path| path.display().to_string())),
        ("strategy", strategy.map(|strategy| strategy.name().to_string())),
        ("isa", isa.map(|isa| isa.name().to_string())),
        ("memory_limit", memory_limit.map(|bytes| bytes.to_string())),
    ];
    for (name, value) in words {
        text.extend(value.map(|value| format!("\n{name}={value}")));
    }
    text.extend(settings.exact_nodes.iter().map(|pattern| format!("\nexact_node={pattern}")));
    text
}

/// Reads the settings that an ONNX framework carries.
///
/// # Errors
/// An entry that this module did not write.
pub(crate) fn carried(onnx: &Onnx) -> TractResult<Settings> {
    read(onnx.op_register.0.keys())
}

/// Reads the settings from the one of these names that [`written`] made, if there is one.
///
/// # Errors
/// An entry that this module did not write.
pub(crate) fn read<'a>(names: impl IntoIterator<Item = &'a String>) -> TractResult<Settings> {
    let Some(words) = names.into_iter().find_map(|name| name.strip_prefix(ENTRY)) else {
        return Ok(Settings::default());
    };
    let exact_nodes = words.split('\n').filter_map(|word| word.strip_prefix("exact_node=")).map(String::from).collect();
    let words: HashMap<&str, &str> = words.lines().filter_map(|word| word.split_once('=')).collect();
    let word = |name: &str| words.get(name).copied();
    let number = |name: &'static str| {
        word(name).map(|bytes| bytes.parse()).transpose().with_context(|| format!("options: {name}"))
    };
    let options = Options {
        strategy: word("strategy").map(String::from),
        isa: word("isa").map(String::from),
        machine: word("machine").map(String::from),
        local_accuracy: word("local_accuracy") == Some("true"),
        precision: word("precision").map(String::from),
        exact_nodes,
        tuning: word("tuning").map(String::from),
        tuning_file: word("tuning_file").map(PathBuf::from),
        fusion: word("fusion") != Some("false"),
        memory_limit: number("memory_limit")?,
        transformed_bytes: number("transformed_bytes")?,
        ..Options::default()
    };
    options.settings()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{info, one, x3};
    use crate::{GroupedDeconv, OptGroupedDeconv, WithConv, WithDeconv};
    use tract_onnx::pb::tensor_proto::DataType;

    fn options(json: &str) -> Options {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_framework_carries_what_it_was_given() -> TractResult<()> {
        for json in [
            "{}",
            r#"{"strategy": "reference", "isa": "portable", "fusion": false, "memory_limit": 4096}"#,
            r#"{"fusion": false}"#,
            r#"{"machine": "zen4", "local_accuracy": true, "tuning": "measured", "tuning_file": "/choices of layers"}"#,
            r#"{"memory_limit": 0}"#,
            r#"{"transformed_bytes": 1000}"#,
            r#"{"precision": "bf16", "exact_nodes": ["head*", "a = b", "", "carriage return\r", "*"]}"#,
        ] {
            let onnx = tract_onnx::onnx().with_deconv_options(&options(r#"{"strategy": "direct_positions"}"#))?;
            let onnx = onnx.with_deconv_options(&options(json))?;
            assert_eq!(carried(&onnx)?, options(json).settings()?, "{json}");
        }
        assert_eq!(carried(&tract_onnx::onnx())?, Settings::default());
        Ok(())
    }

    #[test]
    fn options_reach_every_convolution_of_a_model() -> TractResult<()> {
        let given = options(r#"{"strategy": "reference", "isa": "portable", "fusion": false, "memory_limit": 64}"#);
        let before = tract_onnx::onnx().with_deconv_options(&given)?.with_deconv().with_conv();
        let after = tract_onnx::onnx().with_deconv().with_conv().with_deconv_options(&given)?;
        for onnx in [before, after] {
            for operator in ["ConvTranspose", "Conv"] {
                let mut proto = one(&[]);
                proto.graph.as_mut().unwrap().node[0].op_type = operator.into();
                let model = crate::load_with(&onnx, proto)?.into_typed()?;
                let op = model.nodes().iter().find_map(|node| node.op_as::<GroupedDeconv>()).unwrap();
                assert_eq!((&op.options, op.fusion), (&given.settings()?.planning, false), "{operator}");
                let model = model.into_optimized()?;
                assert!(model.nodes().iter().any(|node| node.op_is::<OptGroupedDeconv>()), "{operator}");
                let plan = crate::explain(&model, &SymbolValues::default())?.remove(0).concrete.unwrap().plan;
                assert_eq!(plan.strategy(), Strategy::Reference, "{operator}");
                model.into_runnable()?.run(tvec!(x3().into_tvalue()))?;
            }
        }
        // the output has 20 bytes
        let tight = tract_onnx::onnx().with_deconv().with_deconv_options(&options(r#"{"memory_limit": 19}"#))?;
        let mut proto = one(&[]);
        proto.graph.as_mut().unwrap().input[0] = info("x", DataType::Float, &["1", "1", "3"]);
        let error = format!("{:#}", crate::load_with(&tight, proto)?.into_optimized().expect_err("above the limit"));
        assert!(error.contains("limit of 19"), "{error}");
        Ok(())
    }

    #[test]
    fn setters_say_what_json_says() {
        let set = Options::default().with_strategy("direct_positions").with_isa(Isa::Portable).with_fusion(false);
        let set = set.with_precision(Precision::Bf16).with_exact_nodes(["*head"]);
        let set = set.with_memory_limit(1).with_share_from(2).with_spin_us(3).with_pool_bytes(4);
        let planned = r#""strategy": "direct_positions", "isa": "portable", "fusion": false, "memory_limit": 1"#;
        let process = r#""share_from": 2, "spin_us": 3, "pool_bytes": 4"#;
        let precision = r#""precision": "bf16", "exact_nodes": ["*head"]"#;
        assert_eq!(set, options(&format!("{{{planned}, {precision}, {process}}}")));
    }

    #[test]
    fn unknown_names_are_refused() {
        for (json, words) in [
            (r#"{"strategy": "fastest"}"#, "strategy=fastest, the known ones are"),
            (r#"{"isa": "fastest"}"#, "isa=fastest, the known ones are"),
            (r#"{"precision": "tf32"}"#, "precision: precision=tf32, the known ones are exact, bf16, f16"),
            (r#"{"exact_nodes": ["a\nb"]}"#, r#"exact nodes: pattern="a\nb", one line is needed"#),
        ] {
            let error = tract_onnx::onnx().with_deconv_options(&options(json)).err().expect("it is refused");
            assert!(format!("{error:#}").contains(words), "{error:#}");
        }
        for json in [r#"{"fuse": true}"#, r#"{"memory_limit": -1}"#, r#"{"fusion": "no"}"#] {
            assert!(serde_json::from_str::<Options>(json).is_err(), "{json}");
        }
    }
}
