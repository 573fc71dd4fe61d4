//! The types of registers and memory.

macro_rules! types {
    ($($name:ident $text:literal $bytes:literal,)*) => {
        /// A type of PTX.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Type {
            $(#[doc = concat!("`.", $text, "`")] $name,)*
        }

        impl Type {
            /// The type of this name, without its dot.
            pub fn of(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$name),)* _ => None }
            }

            /// Bytes of a value.
            pub fn bytes(self) -> usize {
                match self { $(Self::$name => $bytes,)* }
            }
        }
    };
}

types! {
    Pred "pred" 1,
    B8 "b8" 1, B16 "b16" 2, B32 "b32" 4, B64 "b64" 8, B128 "b128" 16,
    U8 "u8" 1, U16 "u16" 2, U32 "u32" 4, U64 "u64" 8,
    S8 "s8" 1, S16 "s16" 2, S32 "s32" 4, S64 "s64" 8,
    F16 "f16" 2, F16x2 "f16x2" 4, Bf16 "bf16" 2, Bf16x2 "bf16x2" 4, Tf32 "tf32" 4, F32 "f32" 4, F64 "f64" 8,
}

impl Type {
    /// Bits of a value.
    pub fn bits(self) -> u32 {
        self.bytes() as u32 * 8
    }

    /// Whether integers of it have a sign.
    pub fn signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    /// Whether it is an integer with or without a sign.
    pub fn integer(self) -> bool {
        self.signed() || matches!(self, Self::U8 | Self::U16 | Self::U32 | Self::U64)
    }

    /// Whether it is bits without a meaning.
    pub fn untyped(self) -> bool {
        matches!(self, Self::B8 | Self::B16 | Self::B32 | Self::B64)
    }

    /// Whether it is one number with a fraction.
    pub fn float(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F32 | Self::F64)
    }

    /// The low bits of `v` that a value has.
    pub fn cut(self, v: u64) -> u64 {
        if self.bytes() >= 8 { v } else { v & ((1 << self.bits()) - 1) }
    }

    /// An integer, with its sign.
    pub fn int(self, v: u64) -> i128 {
        let v = self.cut(v);
        if !self.signed() {
            return i128::from(v);
        }
        let shift = 64 - self.bits();
        i128::from(((v << shift) as i64) >> shift)
    }

    /// An integer of up to 32 bits, with its sign, or the bits of one of 64: what most instructions are quick on.
    #[inline]
    pub fn short(self, v: u64) -> i64 {
        match self {
            Self::S8 => i64::from(v as i8),
            Self::S16 => i64::from(v as i16),
            Self::S32 => i64::from(v as i32),
            _ => self.cut(v) as i64,
        }
    }

    /// The smallest and the largest integer.
    pub fn range(self) -> (i128, i128) {
        match self.signed() {
            true => (-(1 << (self.bits() - 1)), (1 << (self.bits() - 1)) - 1),
            false => (0, (1 << self.bits()) - 1),
        }
    }
}
