//! Limits on the size of symbolic expressions.
//!
//! The time of tract's arithmetic on dimensions grows with a power of the expressions' size, and
//! without bound if sums are multiplied. Expressions from files are therefore measured first.

use tract_core::internal::*;

/// The most symbols and numbers.
const MOST_LEAVES: usize = 64;
/// The most symbols that are multiplied with each other.
const MOST_FACTORS: usize = 4;
/// The most divisions.
const MOST_DIVISIONS: usize = 8;

/// The size of an expression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    leaves: usize,
    factors: usize,
    divisions: usize,
}

impl Extent {
    const NUMBER: Extent = Extent { leaves: 1, factors: 0, divisions: 0 };
    const SYMBOL: Extent = Extent { leaves: 1, factors: 1, divisions: 0 };

    /// The size of a sum or of a choice.
    fn plus(self, other: Extent) -> Extent {
        Extent { factors: self.factors.max(other.factors), ..self.times(other) }
    }

    fn times(self, other: Extent) -> Extent {
        Extent {
            leaves: self.leaves.saturating_add(other.leaves),
            factors: self.factors.saturating_add(other.factors),
            divisions: self.divisions.saturating_add(other.divisions),
        }
    }

    fn divided(self) -> Extent {
        Extent { leaves: self.leaves.saturating_add(1), divisions: self.divisions.saturating_add(1), ..self }
    }

    /// The size of a dimension.
    pub fn of(dim: &TDim) -> Extent {
        let sum = |terms: &[TDim]| terms.iter().map(Extent::of).fold(Extent::default(), Extent::plus);
        match dim {
            TDim::Val(_) => Extent::NUMBER,
            TDim::Sym(_) => Extent::SYMBOL,
            TDim::Add(terms) | TDim::Min(terms) | TDim::Max(terms) | TDim::Broadcast(terms) => sum(terms),
            TDim::Mul(terms) => terms.iter().map(Extent::of).fold(Extent::default(), Extent::times),
            TDim::MulInt(_, dim) => Extent::NUMBER.times(Extent::of(dim)),
            TDim::Div(dim, _) => Extent::of(dim).divided(),
            TDim::Ge(a, b) | TDim::Eq(a, b) => Extent::of(a).plus(Extent::of(b)),
        }
    }

    /// The size of an expression that has not been parsed yet.
    ///
    /// Its nesting of parentheses and signs must be shallow, as each level is a recursive call.
    ///
    /// # Errors
    /// The text is not an expression.
    #[cfg(any(feature = "nnef", test))]
    pub fn of_text(text: &str) -> TractResult<Extent> {
        let mut reader = Reader { rest: text.as_bytes() };
        let extent = reader.sum()?;
        ensure!(reader.peek().is_none(), "characters follow its end");
        Ok(extent)
    }

    /// Checks that tract's arithmetic can handle the expression in reasonable time.
    ///
    /// # Errors
    /// The expression is too large.
    pub fn check(self) -> TractResult<()> {
        for (what, found, most) in [
            ("terms", self.leaves, MOST_LEAVES),
            ("factors", self.factors, MOST_FACTORS),
            ("divisions", self.divisions, MOST_DIVISIONS),
        ] {
            ensure!(found <= most, "{what}={found}, at most {most} are read");
        }
        Ok(())
    }
}

/// A parser that accepts all that tract's own parser accepts, and a little more.
#[cfg(any(feature = "nnef", test))]
struct Reader<'a> {
    rest: &'a [u8],
}

#[cfg(any(feature = "nnef", test))]
impl Reader<'_> {
    fn peek(&mut self) -> Option<u8> {
        self.rest = self.rest.trim_ascii_start();
        self.rest.first().copied()
    }

    fn skip(&mut self) {
        self.rest = self.rest.get(1..).unwrap_or_default();
    }

    fn skip_while(&mut self, belongs: impl Fn(u8) -> bool) {
        let len = self.rest.iter().position(|c| !belongs(*c)).unwrap_or(self.rest.len());
        self.rest = &self.rest[len..];
    }

    /// Parses the terms of a sum, or a function's arguments.
    fn sum(&mut self) -> TractResult<Extent> {
        let mut extent = self.product()?;
        while let Some(b'+' | b'-' | b'#' | b',') = self.peek() {
            self.skip();
            extent = extent.plus(self.product()?);
        }
        Ok(extent)
    }

    fn product(&mut self) -> TractResult<Extent> {
        let mut extent = self.factor()?;
        loop {
            match self.peek() {
                Some(b'*') => {
                    self.skip();
                    extent = extent.times(self.factor()?);
                }
                Some(b'/') => {
                    self.skip();
                    ensure!(self.peek().is_some_and(|c| c.is_ascii_digit()), "a divisor is a number");
                    self.skip_while(|c| c.is_ascii_digit());
                    extent = extent.divided();
                }
                _ => return Ok(extent),
            }
        }
    }

    fn factor(&mut self) -> TractResult<Extent> {
        match self.peek() {
            Some(b'-') => {
                self.skip();
                self.factor()
            }
            Some(b'(') => self.in_parentheses(),
            Some(c) if c.is_ascii_digit() => {
                self.skip_while(|c| c.is_ascii_digit());
                Ok(Extent::NUMBER)
            }
            Some(c) if c.is_ascii_alphabetic() || c == b'_' => {
                self.name();
                match self.peek() {
                    Some(b'(') => self.in_parentheses(),
                    _ => Ok(Extent::SYMBOL),
                }
            }
            _ => bail!("a number or a symbol is missing"),
        }
    }

    fn in_parentheses(&mut self) -> TractResult<Extent> {
        self.skip();
        let extent = self.sum()?;
        ensure!(self.peek() == Some(b')'), "a parenthesis is not closed");
        self.skip();
        Ok(extent)
    }

    /// Skips a name: letters, digits, underscores, dots, and slashes before a letter.
    fn name(&mut self) {
        loop {
            self.skip_while(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'.');
            match self.rest {
                [b'/', letter, ..] if letter.is_ascii_alphabetic() => self.skip(),
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_measured_as_what_they_say() -> TractResult<()> {
        let scope = SymbolScope::default();
        for (text, leaves, factors, divisions) in [
            ("7", 1, 0, 0),
            ("S", 1, 1, 0),
            ("2*S + 1", 3, 1, 0),
            ("S*(T+3)*S", 4, 3, 0),
            ("(S+3)/4", 3, 1, 1),
            ("min(S, T*2, 9)", 4, 1, 0),
            ("max(S/2,T)#S", 4, 1, 1),
            ("-foo/bar.0 - 1", 2, 1, 0),
        ] {
            assert_eq!(Extent::of_text(text)?, Extent { leaves, factors, divisions }, "{text}");
            scope.parse_tdim(text)?;
        }
        for text in ["", "S*", "S/-2", "(S", "S)", "S T", "S;", "2*/S"] {
            assert!(Extent::of_text(text).is_err(), "{text}");
        }
        Ok(())
    }

    #[test]
    fn what_is_too_large() {
        let many = |text: &str, count: usize, between: &str| vec![text; count].join(between);
        for (text, word) in [
            (many("S", 5, "*"), "factors=5"),
            (many("(S+1)", 5, "*"), "factors=5"),
            (many("S", 65, "+"), "terms=65"),
            (many("S/2", 9, "+"), "divisions=9"),
            (many("S", 2048, "*"), "terms=2048"),
        ] {
            let error = Extent::of_text(&text).and_then(|extent| extent.check()).expect_err("too large");
            assert!(format!("{error:#}").contains(word), "{text}: {error:#}");
        }
        for text in [many("S", 4, "*"), many("S/2", 8, "+"), many("2*S", 32, "+")] {
            Extent::of_text(&text).and_then(|extent| extent.check()).unwrap_or_else(|e| panic!("{text}: {e:#}"));
        }
    }

    #[test]
    fn dimensions_are_measured_too() -> TractResult<()> {
        let scope = SymbolScope::default();
        let s = scope.sym("S").to_dim();
        let power = |n: usize| (1..n).fold(s.clone(), |power, _| power * &s);
        Extent::of(&power(4)).check()?;
        assert!(Extent::of(&power(5)).check().is_err());
        let halves = |n: usize| TDim::Add(vec![TDim::Div(Box::new(s.clone() + 1), 2); n]);
        Extent::of(&halves(8)).check()?;
        assert!(Extent::of(&halves(9)).check().is_err());
        Ok(())
    }
}
