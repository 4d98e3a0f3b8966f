//! Prints a spec in one line, for dumps and [`crate::explain()`].

use crate::spec::{DataFormat, DeconvSpec, Direction, FilterFormat, OutputShape, Padding, Side, list};
use std::fmt;

impl fmt::Display for DataFormat {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            DataFormat::Ncx => "NCX",
            DataFormat::Nxc => "NXC",
        })
    }
}

impl fmt::Display for FilterFormat {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            FilterFormat::Iox => "IOX",
            FilterFormat::Oix => "OIX",
            FilterFormat::Xio => "XIO",
            FilterFormat::Xoi => "XOI",
            FilterFormat::GroupedOix => "GOIX",
        })
    }
}

impl fmt::Display for DeconvSpec {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let direction = match self.direction {
            Direction::Transposed => "transposed",
            Direction::Forward => "forward",
        };
        write!(
            f,
            "{direction} {}-d, {} data, {} filter, {} to {} channels in {} group{}, kernel {}, strides {}",
            self.rank(),
            self.data_format,
            self.filter_format,
            self.in_channels,
            self.out_channels,
            self.group,
            if self.group == 1 { "" } else { "s" },
            list(&self.kernel, "x"),
            list(&self.strides, "x"),
        )?;
        if self.dilations.iter().any(|d| *d != 1) {
            write!(f, ", dilations {}", list(&self.dilations, "x"))?;
        }
        if self.output_padding.iter().any(|op| *op != 0) {
            write!(f, ", output padding {}", list(&self.output_padding, ","))?;
        }
        match &self.padding {
            Padding::Explicit { begin, end } if begin.iter().chain(end).all(|p| *p == 0) => Ok(()),
            Padding::Explicit { begin, end } => write!(f, ", pads {} and {}", list(begin, ","), list(end, ",")),
            Padding::SameForward { extra } => {
                write!(f, ", padded to the input's size over the stride, {}", side(extra))
            }
            Padding::OutputShape { shape, extra } => {
                let source = match shape {
                    OutputShape::Dims(_) => "output shape",
                    OutputShape::Input(_) => "run-time output shape",
                };
                write!(f, ", {source} {}, {}", list(shape.dims(), ","), side(extra))
            }
        }
    }
}

fn side(extra: &Side) -> &'static str {
    match extra {
        Side::Begin => "odd element first",
        Side::End => "odd element last",
    }
}
