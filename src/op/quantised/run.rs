//! What the ops of quantised convolutions share: their inputs and their facts.

use super::rescale::Output;
use crate::op::shared;
use crate::spec::DeconvSpec;
use tract_core::internal::*;

/// The source of the data's zero point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataZeroPoint {
    /// A value of the data's type.
    Const(i32),
    /// An input of the op: one value of the data's type, or an i32.
    Input,
}

/// The slots of the inputs that an op may have.
pub(super) struct Slots {
    pub zero_point: Option<usize>,
    pub factor: Option<usize>,
    pub added: Option<usize>,
    count: usize,
}

impl Slots {
    /// Returns the slots of an op. `first` is the number of inputs that it has in any case.
    pub fn new(first: usize, zero_point: DataZeroPoint, output: &Output) -> Slots {
        let mut count = first;
        let mut next = |present: bool| {
            count += present as usize;
            present.then(|| count - 1)
        };
        let zero_point = next(zero_point == DataZeroPoint::Input);
        let factor = next(output.has_factor_input());
        let added = next(output.added().is_some());
        Slots { zero_point, factor, added, count }
    }

    /// Checks the number of inputs.
    pub fn check(&self, found: usize) -> TractResult<()> {
        ensure!(found == self.count, "inputs: count={found}, {} are needed", self.count);
        Ok(())
    }

    /// Relates the axes of data, added tensor and output.
    pub fn axes_mapping(
        &self,
        spec: &DeconvSpec,
        inputs: &[&TypedFact],
        outputs: &[&TypedFact],
    ) -> TractResult<AxesMapping> {
        let mut axes = shared::axes_mapping(spec, 1, inputs, outputs)?;
        if let Some(slot) = self.added {
            for axis in 0..inputs[slot].rank() {
                let of_output = axes.axis((InOut::Out(0), axis))?.repr;
                axes = axes.linking(of_output, (InOut::In(slot), axis))?;
            }
        }
        Ok(axes)
    }
}

/// Returns the zero point of the data in a run.
///
/// # Errors
/// It is not one value, or not one of the data's type.
pub(super) fn zero_point_of(source: DataZeroPoint, data: &Tensor, input: Option<&Tensor>) -> TractResult<i32> {
    let value = match (source, input) {
        (DataZeroPoint::Const(value), _) => return Ok(value),
        (DataZeroPoint::Input, None) => bail!("inputs: the zero point is missing"),
        (DataZeroPoint::Input, Some(tensor)) => {
            ensure!(tensor.len() == 1, "zero point: shape={:?}, one value is needed", tensor.shape());
            let wide = tensor.cast_to::<i32>()?;
            wide.try_as_plain_ram()?.as_slice::<i32>()?[0]
        }
    };
    check_zero_point("zero point", value, data.datum_type())?;
    Ok(value)
}

/// Refuses a zero point that is no value of a type.
pub(super) fn check_zero_point(what: &str, value: i32, datum_type: DatumType) -> TractResult<()> {
    let (least, most) = if datum_type == DatumType::I8 { (-128, 127) } else { (0, 255) };
    ensure!((least..=most).contains(&value), "{what}: zero_point={value}, it must be within {least}..={most}");
    Ok(())
}

/// Checks the facts of inputs and returns those of outputs.
pub(super) fn check_inputs(
    spec: &DeconvSpec,
    slots: &Slots,
    output: &Output,
    inputs: &[&TypedFact],
) -> TractResult<TVec<TypedFact>> {
    slots.check(inputs.len())?;
    let data = inputs[0];
    ensure!(is_byte(data.datum_type), "input: datum_type={:?}, 8-bit integers are needed", data.datum_type);
    let shape = spec.output_shape(&data.shape)?;
    if let Some(slot) = slots.zero_point {
        let dt = inputs[slot].datum_type;
        ensure!(
            dt == data.datum_type || dt == DatumType::I32,
            "zero point: datum_type={dt:?}, the input's is {:?}",
            data.datum_type
        );
    }
    if let Some(slot) = slots.factor {
        let dt = inputs[slot].datum_type;
        ensure!(dt == DatumType::F32, "scale: datum_type={dt:?}, F32 is needed");
    }
    if let (Some(slot), Some(added)) = (slots.added, output.added()) {
        let fact = inputs[slot];
        ensure!(
            fact.datum_type == added.datum_type(),
            "added: datum_type={:?}, {:?} is needed",
            fact.datum_type,
            added.datum_type()
        );
        ensure!(
            fact.shape.rank() == shape.len() && fact.shape.iter().zip(&shape).all(|(a, b)| a.compatible_with(b)),
            "added: shape={:?}, the output's is {shape:?}",
            fact.shape
        );
    }
    Ok(tvec!(output.datum_type().fact(shape)))
}

/// Returns whether a type is u8 or i8.
pub(super) fn is_byte(datum_type: DatumType) -> bool {
    matches!(datum_type, DatumType::U8 | DatumType::I8)
}
