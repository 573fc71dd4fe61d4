//! 256-bit vectors with VNNI, which there is twice: as AVX-VNNI, and in AVX-512 VL.

/// What AVX-VNNI has.
pub(crate) mod vex {
    use crate::{
        coded4::codes,
        isa::ymm::{nibbles_of, vectors},
        tile::tiles,
    };
    use std::arch::x86_64::*;

    /// Vectors of eight lanes.
    pub(crate) struct AvxVnni;

    vectors!(AvxVnni, u8, i8, _mm256_dpbusd_avx_epi32);
    nibbles_of!(AvxVnni, _mm256_dpbusd_avx_epi32);

    tiles!(
        AvxVnni,
        #[target_feature(enable = "avx2,fma,avxvnni")]
        int8: Bytes 1: 8 [1, 2, 4], 2: 6 [1, 2, 4];
        float: crate::isa::avx2::tiles_f
    );

    codes!(
        AvxVnni,
        #[target_feature(enable = "avx2,fma,avxvnni")]
        4: 1, 2: 2, 1: 2
    );
}

/// What AVX-512 VL has.
pub(crate) mod evex {
    use crate::{
        coded4::codes,
        isa::ymm::{nibbles_of, vectors},
        tile::tiles,
    };
    use std::arch::x86_64::*;

    /// Vectors of eight lanes.
    pub(crate) struct Avx512Vl;

    vectors!(Avx512Vl, u8, i8, _mm256_dpbusd_epi32);
    nibbles_of!(Avx512Vl, _mm256_dpbusd_epi32);

    tiles!(
        Avx512Vl,
        #[target_feature(enable = "avx2,fma,avx512f,avx512vl,avx512vnni")]
        int8: Bytes 1: 8 [1, 2, 4], 2: 6 [1, 2, 4];
        float: crate::isa::avx2::tiles_f
    );

    codes!(
        Avx512Vl,
        #[target_feature(enable = "avx2,fma,avx512f,avx512vl,avx512vnni")]
        4: 1, 2: 2, 1: 2
    );
}
