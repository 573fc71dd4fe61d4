//! Instruction sets.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512vnni;
#[cfg(target_arch = "x86_64")]
mod avxvnni;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod portable;
#[cfg(target_arch = "x86_64")]
mod ymm;

use crate::{coded4::Codes, tile::Tiles};
use std::{fmt, str::FromStr, sync::OnceLock};

/// An instruction set for which there are kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust.
    Portable,
    /// AVX2 and FMA: 8-bit products by 16-bit multiply-adds, which are exact.
    Avx2,
    /// 256-bit `vpdpbusd`, of AVX-VNNI or of AVX-512 VL.
    AvxVnni,
    /// 512-bit `vpdpbusd`; F, BW, VL and VNNI of AVX-512.
    Avx512Vnni,
    /// AMX's tiles for products of bytes, [`Isa::Avx512Vnni`] for all else; on Linux.
    Amx,
    /// NEON, which every 64-bit ARM processor has: 8-bit products of 16 bits, added to 32.
    Neon,
    /// NEON with SDOT, four 8-bit products a lane (FEAT_DotProd).
    Dotprod,
    /// NEON with USMMLA, products of 8-bit matrices (FEAT_I8MM), beside SDOT.
    I8mm,
    /// Plain Rust that cuts off sums of two 8-bit products at 16 bits, as programs do on processors with AVX2 and without
    /// VNNI. It is for looking at what that changes, and none of [`Isa::ALL`], whose results are the same.
    Saturating,
}

impl Isa {
    /// Every set, the best of a machine last.
    pub const ALL: [Isa; 8] =
        [Isa::Portable, Isa::Avx2, Isa::AvxVnni, Isa::Avx512Vnni, Isa::Amx, Isa::Neon, Isa::Dotprod, Isa::I8mm];

    /// The best set that this machine has.
    pub fn detect() -> Self {
        Self::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Isa::Portable)
    }

    /// Whether this machine has it.
    pub fn is_available(self) -> bool {
        if self == Isa::Saturating {
            return true;
        }
        // Asked before every tile: one load instead of a dozen.
        static AVAILABLE: OnceLock<[bool; Isa::ALL.len()]> = OnceLock::new();
        AVAILABLE.get_or_init(|| Self::ALL.map(Self::is_found))[self as usize]
    }

    fn is_found(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx512 = avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni");
            match self {
                Isa::Portable | Isa::Saturating => true,
                Isa::Avx2 => avx2,
                Isa::AvxVnni => avx512 || avx2 && is_x86_feature_detected!("avxvnni"),
                Isa::Avx512Vnni => avx512,
                Isa::Amx => avx512 && amx::is_found(),
                Isa::Neon | Isa::Dotprod | Isa::I8mm => false,
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            use std::arch::is_aarch64_feature_detected;
            let dotprod = is_aarch64_feature_detected!("dotprod");
            match self {
                Isa::Portable | Isa::Saturating | Isa::Neon => true,
                Isa::Dotprod => dotprod,
                Isa::I8mm => dotprod && is_aarch64_feature_detected!("i8mm"),
                Isa::Avx2 | Isa::AvxVnni | Isa::Avx512Vnni | Isa::Amx => false,
            }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        {
            self == Isa::Portable
        }
    }

    /// Whether this machine has it, and products of bfloat16 beside it: two a lane, added to a float.
    pub(crate) fn multiplies_bf16(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni | Isa::Amx => self.is_available() && is_x86_feature_detected!("avx512bf16"),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon | Isa::Dotprod | Isa::I8mm => {
                self.is_available() && std::arch::is_aarch64_feature_detected!("bf16")
            }
            _ => false,
        }
    }

    /// Its register tiles, which the machine can therefore run.
    ///
    /// # Panics
    /// When this machine doesn't have it.
    pub(crate) fn tiles(self) -> &'static Tiles {
        assert!(self.is_available(), "this machine has no {self}");
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => &amx::TILES,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => &avx512vnni::TILES,
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni if is_x86_feature_detected!("avxvnni") => &avxvnni::vex::TILES,
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => &avxvnni::evex::TILES,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &avx2::TILES,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => &neon::plain::TILES,
            #[cfg(target_arch = "aarch64")]
            Isa::Dotprod => &neon::dotprod::TILES,
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm => &neon::i8mm::TILES,
            Isa::Saturating => &portable::saturating::TILES,
            _ => &portable::TILES,
        }
    }

    /// What it does with codes, which the machine can therefore run.
    ///
    /// # Panics
    /// When this machine doesn't have it.
    pub(crate) fn codes(self) -> &'static Codes {
        assert!(self.is_available(), "this machine has no {self}");
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx | Isa::Avx512Vnni => &avx512vnni::CODES,
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni if is_x86_feature_detected!("avxvnni") => &avxvnni::vex::CODES,
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => &avxvnni::evex::CODES,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &avx2::CODES,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => &neon::plain::CODES,
            #[cfg(target_arch = "aarch64")]
            Isa::Dotprod | Isa::I8mm => &neon::dotprod::CODES,
            _ => &portable::CODES,
        }
    }

    /// Whether it multiplies and adds floats in one instruction; without one, a fused product would be a call.
    pub(crate) const fn fuses(self) -> bool {
        !matches!(self, Isa::Portable | Isa::Saturating)
    }

    /// Its name: what [`Isa::from_str`] takes.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avxvnni",
            Isa::Avx512Vnni => "avx512vnni",
            Isa::Amx => "amx",
            Isa::Neon => "neon",
            Isa::Dotprod => "dotprod",
            Isa::I8mm => "i8mm",
            Isa::Saturating => "saturating",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = ();
    fn from_str(s: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().chain([Isa::Saturating]).find(|isa| isa.name() == s).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_set_that_is_expected_is_found() {
        // Where a machine is emulated it is known what it has; without that, its tests would pass with another set's kernels.
        if let Ok(name) = std::env::var("COMPRESS_EXPECT_ISA") {
            assert_eq!(Isa::detect().name(), name);
        }
    }
}
