//! Plain Rust, compiled once for each instruction set.

/// Defines functions whose bodies are compiled for every instruction set; a call has the [`Isa`]
/// as its first argument, which the body sees too, there as a constant.
///
/// What a body calls must be `#[inline(always)]`, or it is compiled for the least set alone.
///
/// [`Isa`]: crate::Isa
macro_rules! multiversion {
    ($(
        $(#[$attribute:meta])*
        $visibility:vis fn $name:ident $(<$($generic:ident: $bound:path),+>)? (
            $isa:ident: Isa $(, $argument:ident: $type:ty)* $(,)?
        ) $body:block
    )+) => {$(
        $(#[$attribute])*
        #[allow(clippy::too_many_arguments)]
        $visibility fn $name $(<$($generic: $bound),+>)? ($isa: $crate::Isa $(, $argument: $type)*) {
            #[inline(always)]
            #[allow(unused_variables, clippy::too_many_arguments)]
            fn body $(<$($generic: $bound),+>)? ($isa: $crate::Isa $(, $argument: $type)*) $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            #[allow(clippy::too_many_arguments)]
            fn avx2 $(<$($generic: $bound),+>)? ($($argument: $type),*) {
                body($crate::Isa::Avx2 $(, $argument)*);
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
            #[allow(clippy::too_many_arguments)]
            fn avx512 $(<$($generic: $bound),+>)? ($($argument: $type),*) {
                body($crate::Isa::Avx512Vnni $(, $argument)*);
            }

            assert!($isa.is_available(), "this machine has no {}", $isa);
            match $isa {
                // SAFETY: the assert found the set available, and so are the features of which it consists.
                #[cfg(target_arch = "x86_64")]
                $crate::Isa::Avx512Vnni | $crate::Isa::Amx => unsafe { avx512($($argument),*) },
                // SAFETY: the assert found the set available. The features of AVX2 are a part of those of AVX-VNNI.
                #[cfg(target_arch = "x86_64")]
                $crate::Isa::Avx2 | $crate::Isa::AvxVnni => unsafe { avx2($($argument),*) },
                // Every function of 64-bit ARM may use NEON.
                #[cfg(target_arch = "aarch64")]
                $crate::Isa::Neon | $crate::Isa::Dotprod | $crate::Isa::I8mm => body($crate::Isa::Neon $(, $argument)*),
                _ => body($crate::Isa::Portable $(, $argument)*),
            }
        }
    )+};
}

pub(crate) use multiversion;
