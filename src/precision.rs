//! The precision of a layer's arithmetic, and the layers that keep the exact one.

use tract_core::internal::*;

/// What the operands of a product are rounded to. Sums are made in f32 in any case.
///
/// It holds for layers of f32 and f16. A layer without kernels for it is computed exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Precision {
    /// Operands are not rounded.
    #[default]
    Exact,
    /// Operands have 8 significant bits and f32's range.
    Bf16,
    /// Operands have 11 significant bits. Magnitudes from 65520 on become infinity.
    F16,
}

impl Precision {
    /// Every precision.
    pub const ALL: &[Precision] = &[Precision::Exact, Precision::Bf16, Precision::F16];

    /// Returns the name, as in the knob `TRACT_DECONV_PRECISION` and in `explain`.
    pub fn name(self) -> &'static str {
        match self {
            Precision::Exact => "exact",
            Precision::Bf16 => "bf16",
            Precision::F16 => "f16",
        }
    }

    /// Returns the precision with this name.
    ///
    /// # Errors
    /// The name is unknown. The message lists the known names.
    pub fn from_name(name: &str) -> TractResult<Precision> {
        Precision::ALL.iter().copied().find(|precision| precision.name() == name).with_context(|| {
            let known: Vec<&str> = Precision::ALL.iter().map(|precision| precision.name()).collect();
            format!("precision: precision={name}, the known ones are {}", known.join(", "))
        })
    }

    /// Rounds a number to nearest, ties to even, as IEEE 754 converts to the format of operands.
    ///
    /// ```
    /// use tract_deconv::Precision;
    ///
    /// assert_eq!(Precision::Bf16.rounded(1.0 + 1.0 / 256.0), 1.0);
    /// assert_eq!(Precision::F16.rounded(70_000.0), f32::INFINITY);
    /// ```
    pub fn rounded(self, number: f32) -> f32 {
        match self {
            Precision::Exact => number,
            Precision::F16 => f16::from_f32(number).to_f32(),
            // The most significant bit of a NaN's fraction keeps it from becoming infinity.
            Precision::Bf16 if number.is_nan() => f32::from_bits((number.to_bits() | 0x0040_0000) & 0xffff_0000),
            Precision::Bf16 => {
                let bits = number.to_bits();
                f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
            }
        }
    }
}

/// Returns whether a pattern has a name. An asterisk stands for any characters, other characters for
/// themselves.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let Some((middle, last)) = rest.rsplit_once('*') else { return name.ends_with(rest) };
    for part in middle.split('*') {
        let Some(at) = name.find(part) else { return false };
        name = &name[at + part.len()..];
    }
    name.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_to_nearest_even() {
        let (ulp, half) = (2f32.powi(-7), 2f32.powi(-8));
        let ties = [(1.0 + half, 1.0), (1.0 + ulp + half, 1.0 + 2.0 * ulp), (1.0 + half * 1.01, 1.0 + ulp)];
        for (number, expected) in ties {
            assert_eq!(Precision::Bf16.rounded(number), expected, "{number}");
            assert_eq!(Precision::Bf16.rounded(-number), -expected, "-{number}");
        }
        let (ulp, half) = (2f32.powi(-10), 2f32.powi(-11));
        for (number, expected) in [(1.0 + half, 1.0), (1.0 + ulp + half, 1.0 + 2.0 * ulp)] {
            assert_eq!(Precision::F16.rounded(number), expected, "{number}");
        }
        assert_eq!(Precision::Exact.rounded(f32::MIN_POSITIVE * 0.3), f32::MIN_POSITIVE * 0.3);
    }

    #[test]
    fn the_ends_of_the_range_convert_as_in_ieee_754() {
        // The numbers halfway between the largest finite ones and the next power of two.
        for (number, finite) in [(65_519.9, true), (65_520.0, false), (1e30, false)] {
            let rounded = Precision::F16.rounded(number);
            assert_eq!(rounded, if finite { 65_504.0 } else { f32::INFINITY }, "{number}");
        }
        assert_eq!(Precision::Bf16.rounded(f32::MAX), f32::INFINITY);
        assert_eq!(Precision::Bf16.rounded(f32::from_bits(0x7f7f_7fff)), f32::from_bits(0x7f7f_0000));
        for precision in [Precision::Bf16, Precision::F16] {
            assert_eq!(precision.rounded(f32::NEG_INFINITY), f32::NEG_INFINITY);
            for bits in [0x7f80_0001, 0xffc0_0000, 0x7fff_ffff, 0xff80_ffff] {
                assert!(precision.rounded(f32::from_bits(bits)).is_nan(), "{bits:x} in {}", precision.name());
            }
            assert_eq!(precision.rounded(-0.0).to_bits(), (-0f32).to_bits());
        }
        // The least subnormal numbers, and what is half of them.
        assert_eq!(Precision::F16.rounded(2f32.powi(-24)), 2f32.powi(-24));
        assert_eq!(Precision::F16.rounded(2f32.powi(-25)), 0.0);
        assert_eq!(Precision::Bf16.rounded(2f32.powi(-133)), 2f32.powi(-133));
        assert_eq!(Precision::Bf16.rounded(2f32.powi(-134)), 0.0);
    }

    #[test]
    fn rounded_numbers_stay() {
        let mut bits = 0x1234_5678u32;
        for _ in 0..20_000 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let number = f32::from_bits(bits);
            for precision in [Precision::Bf16, Precision::F16] {
                let once = precision.rounded(number);
                assert!(once.is_nan() && number.is_nan() || precision.rounded(once) == once, "{number:e}");
            }
        }
    }

    #[test]
    fn names_match_patterns() {
        for (pattern, name, expected) in [
            ("head", "head", true),
            ("head", "heads", false),
            ("head*", "heads", true),
            ("*head", "the.head", true),
            ("*", "", true),
            ("a*b*c", "a.b.c", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "acb", false),
            ("ab*ba", "aba", false),
            ("a**b", "ab", true),
            ("*a*", "cab", true),
            ("*ab*ab", "cab", false),
            ("", "", true),
            ("é*", "été", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} and {name}");
        }
    }

    #[test]
    fn unknown_names_are_refused() {
        assert!(Precision::ALL.iter().all(|precision| Precision::from_name(precision.name()).ok() == Some(*precision)));
        let error = format!("{:#}", Precision::from_name("tf32").expect_err("it is no precision"));
        assert_eq!(error, "precision: precision=tf32, the known ones are exact, bf16, f16");
    }
}
