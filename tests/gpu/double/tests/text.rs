//! What the text of a module may look like.

mod support;
use cuda::{isa, machine::Kind, ptx};
use support::Program;

/// What a kernel writes to the first word.
fn word(body: &str) -> u64 {
    Program::new(&format!("setp.ne.u32 %p0, %lane, 0; @%p0 exit; {body} st.global.b64 [%out], %x0;")).run().unwrap()[0]
}

#[test]
fn what_says_nothing_of_results_is_passed_over() {
    assert_eq!(
        word(
            "// A comment; with { signs
            /* and
               another ; } */
            .pragma \"nounroll\";
            .loc 1 5 7
            .loc 1 5 7, function_name $L__info_string0, inlined_at 1 3 9
            mov.u64 %x0, 5; /* after */ // and more
            {
                .reg .b64 %x0; .pragma \"used_bytes_mask 0xf; }\";
                mov.u64 %x0, 6;
            }
            { .reg .b64 %t<2>; mov.u64 %t1, 4; { .reg .b64 %t1; mov.u64 %t1, 9; } add.u64 %x0, %x0, %t1; }"
        ),
        9
    );
}

#[test]
fn numbers_are_written_in_several_ways() {
    for (text, value) in [
        ("0", 0),
        ("7", 7),
        ("-7", -7i64 as u64),
        ("0x1F", 31),
        ("0X1f", 31),
        ("0b1101", 13),
        ("017", 15),
        ("4294967295U", u64::from(u32::MAX)),
        ("0xffffffffffffffff", u64::MAX),
        ("18446744073709551615", u64::MAX),
        ("-9223372036854775808", 1 << 63),
        ("0d3FF0000000000000", 0x3ff0 << 48),
        ("WARP_SZ", 32),
    ] {
        assert_eq!(word(&format!("mov.b64 %x0, {text};")), value, "{text}");
    }
    assert_eq!(word("mov.f32 %x0, 0f3F800000;"), 0x3f80_0000);
    assert_eq!(word("mov.f32 %x0, 0FBF800000;"), 0xbf80_0000);
}

#[test]
fn addresses_have_offsets() {
    let program = Program::new(
        ".shared .align 8 .b8 first[24]; .shared .align 8 .b8 second[24];
        setp.ne.u32 %p0, %lane, 0; @%p0 exit;
        st.shared.u64 [second+8], 3; st.shared.u64 [second + 16], 4; mov.u32 %r0, second; ld.shared.u64 %x0, [%r0+8]; ld.shared.u64 %x1, [%r0+24+-8];
        shl.b64 %x1, %x1, 8; or.b64 %x0, %x0, %x1; st.global.u64 [%out], %x0; add.u32 %r0, %r0, 16; ld.shared.u64 %x0, [%r0 - 8]; st.global.u64 [%out+8], %x0;
        ld.shared.u64 %x0, [%r0+-8]; st.global.u64 [%out+16], %x0; mov.u32 %r1, first; mov.u32 %r2, second; st.global.v2.u32 [%out+24], {%r1, %r2};
        mov.u32 %r3, second+16; ld.shared.u64 %x0, [%r3]; st.global.u64 [%out+32], %x0;",
    );
    assert_eq!(program.run().unwrap()[..5], [0x403, 3, 3, 24 << 32, 4]);
}

#[test]
fn parameters_lie_as_their_types_say() {
    let text = ".version 8.0 .target sm_90 .address_size 64
        .visible .entry other() { ret; }
        .visible .entry k(
            .param .u8 a, .param .align 8 .b8 b[12], .param .u64 .ptr .global .align 16 c, .param .f32 d, .param .u16 e
        )
        .maxntid 128, 1, 1
        .minnctapersm 2
        { ret; }
        .func (.param .b32 r) helper(.param .b32 x) { { ret; } }
        .extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);";
    let module = ptx::parse(text).unwrap();
    assert_eq!(module.entries.len(), 2);
    assert_eq!(module.entries["k"].params, [(0, 1), (8, 12), (24, 8), (32, 4), (36, 2)]);
    assert_eq!(module.entries["k"].param_bytes(), 38);
    assert_eq!(isa::decode(&module.entries["k"]).len(), 1);
}

#[test]
fn what_is_not_understood_is_named_with_its_line() {
    let error = |body: &str| ptx::parse(&Program::new(body).text()).unwrap_err();
    assert!(error("mov.u32 %r0, %undeclared;").contains("`%undeclared` is not known"));
    assert!(error("mov.u32 %r0, %smid;").contains("`%smid` is not known"));
    assert!(error("mov.u32 %r0, %r1").contains("where `,` was expected"));
    assert!(error("@%q bra END; END:").contains("no predicate %q"));
    assert!(error("brx.idx %r0, TABLE;").contains("no targets TABLE"));
    assert!(error("T: .branchtargets A, B; A: brx.idx %r0, T;").contains("no label B"));
    assert!(error("mov.u32 %r0, 5 ? 6;").contains("`?` is not PTX"));
    assert!(error(".pragma \"nounroll;").contains("a text without an end"));
    let error =
        ptx::parse(".version 8.0\n.target sm_90\n.visible .entry k()\n{\n ret;\n add.u32 %r1, 1, 2;\n}").unwrap_err();
    assert!(error.starts_with("line 6: "), "{error}");
    assert!(ptx::parse(".entry k() { ret;").unwrap_err().contains("ends too early"));
    assert!(ptx::parse(".global .align 4 .u32 x[1] = {1, 2};").unwrap_err().contains("more values"));
    assert!(ptx::parse(".global .align 4 .e4m3 x[1];").unwrap_err().contains("in a declaration"));
}

#[test]
fn code_that_is_not_run_may_be_unknown() {
    Program::new("bra END; unknown.f8 %r0, %r1; END: ret;").passes();
    Program::new("unknown.f8 %r0, %r1;").fails(Kind::Instruction, "`unknown`");
}
