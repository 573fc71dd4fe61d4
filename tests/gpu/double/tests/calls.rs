//! Functions that a kernel calls.

mod support;
use cuda::machine::Kind;
use support::Program;

/// A sum and a difference: two words come back. A branch inside leaves early where both are equal.
const FUNCTION: &str = "
    .func (.param .align 16 .b8 both[16]) pair(.param .b64 a, .param .b64 b);
    .func (.param .align 16 .b8 both[16]) pair(.param .b64 a, .param .b64 b)
    {
        .reg .b64 %x<4>; .reg .pred %p<2>;
        ld.param.b64 %x0, [a]; ld.param.b64 %x1, [b];
        add.u64 %x2, %x0, %x1;
        setp.eq.u64 %p1, %x0, %x1;
        st.param.b64 [both+8], 0;
        @%p1 bra $L__BB0_2;
        sub.u64 %x3, %x0, %x1;
        st.param.b64 [both+8], %x3;
    $L__BB0_2:
        st.param.b64 [both], %x2;
        ret;
    }";

/// What `pair` gives of two values, in `%x6` and `%x7`.
fn call(guard: &str, name: &str, a: &str, b: &str) -> String {
    format!(
        "{{ .param .b64 param0; .param .b64 param1; .param .align 16 .b8 retval0[16];
            st.param.b64 [param0], {a}; st.param.b64 [param1], {b};
            {guard} call.uni (retval0), {name}, (param0, param1);
            ld.param.b64 %x6, [retval0]; ld.param.b64 %x7, [retval0+8]; }}"
    )
}

const STORE: &str = "mul.wide.u32 %x8, %lane, 16; add.s64 %x8, %x8, %out; st.global.v2.b64 [%x8], {%x6, %x7};";

#[test]
fn a_function_is_called_twice_with_lanes_apart() {
    let body = format!(
        "cvt.u64.u32 %x1, %lane; mov.u64 %x2, 5; {} mov.u64 %x3, %x6; {} {STORE}",
        call("", "pair", "%x1", "%x2"),
        call("", "pair", "%x3", "%x2"),
    );
    let out = Program::new(&body).outside(FUNCTION).run().unwrap();
    for lane in 0..32u64 {
        // (lane + 5) + 5, and what is left of it without 5.
        let difference = if lane == 0 { 0 } else { lane };
        assert_eq!(out[2 * lane as usize..][..2], [lane + 10, difference], "lane {lane}");
    }
}

#[test]
fn a_call_under_a_predicate_is_of_some_lanes() {
    let body = format!(
        "cvt.u64.u32 %x1, %lane; mov.u64 %x2, 1; setp.lt.u32 %p3, %lane, 4;
         {{ .param .b64 param0; .param .b64 param1; .param .align 16 .b8 retval0[16];
            st.param.b64 [param0], %x1; st.param.b64 [param1], %x2; st.param.b64 [retval0], 77; st.param.b64 [retval0+8], 78;
            @!%p3 call (retval0), pair, (param0, param1);
            ld.param.b64 %x6, [retval0]; ld.param.b64 %x7, [retval0+8]; }} {STORE}"
    );
    let out = Program::new(&body).outside(FUNCTION).run().unwrap();
    for lane in 0..32u64 {
        let expected = if lane < 4 { [77, 78] } else { [lane + 1, lane - 1] };
        assert_eq!(out[2 * lane as usize..][..2], expected, "lane {lane}");
    }
}

#[test]
fn what_is_not_there_is_refused_when_it_is_called() {
    let body = format!("{} {STORE}", call("", "vprintf", "%x1", "%x2"));
    assert_eq!(Program::new(&body).run().unwrap_err().kind, Kind::Instruction);
    let unreached = format!("setp.gt.u32 %p3, %lane, 40; {}", call("@%p3", "vprintf", "%x1", "%x2"));
    Program::new(&unreached).run().unwrap();
}

#[test]
fn a_function_inside_itself_is_refused() {
    let outside = ".func again() { call again; ret; }";
    let text = Program::new("call again;").outside(outside).text();
    assert!(cuda::ptx::parse(&text).unwrap_err().contains("inside itself"));
}
