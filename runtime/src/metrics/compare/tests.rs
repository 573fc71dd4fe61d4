use super::*;
use crate::metrics::meaning::Answer;

fn batch(len: usize, labels: Option<&[i64]>) -> Batch {
    Batch { inputs: vec![], labels: labels.map(<[i64]>::to_vec), len }
}

fn comparing(meaning: Meaning, labelled: bool) -> Comparison {
    let answers = Answers {
        outputs: vec![Answer { name: "y".into(), meaning, declared: vec![], may_mix: meaning == Meaning::Values }],
        mask: None,
        tokens: None,
    };
    let measure = answers.measure(None, labelled).unwrap();
    Comparison::new(Kind::Data, &answers, measure)
}

/// The metric's value for one pair of outputs, of `samples`.
fn value(meaning: Meaning, samples: usize, shape: &[usize], before: &[f32], after: &[f32]) -> Option<f64> {
    let mut c = comparing(meaning, false);
    c.add(&batch(samples, None), &[Tensor::f32(shape, before)], &[Tensor::f32(shape, after)]).unwrap();
    c.value().1
}

#[test]
fn compares_batches() {
    let mut c = comparing(Meaning::Classes, true);
    assert_eq!((c.agreement(), c.sqnr_db(), c.value()), (None, None, (None, None)));
    let before = [Tensor::f32(&[2, 2], &[3.0, 0.0, 0.0, 4.0])];
    let after = [Tensor::f32(&[2, 2], &[3.0, 0.0, 0.5, 0.0])];
    c.add(&batch(2, Some(&[0, 1])), &before, &after).unwrap();
    assert_eq!((c.samples(), c.value(), c.agreement()), (2, (Some(1.0), Some(0.5)), Some(0.5)));
    let db = 10.0 * (25.0f64 / 16.25).log10();
    assert!((c.sqnr_db().unwrap() - db).abs() < 1e-9);
    assert_eq!(c.worst().unwrap().max_error, 4.0);
}

#[test]
fn the_worst_output_is_named_and_not_pooled() {
    let names = ["large", "small"];
    let outputs = names
        .map(|name| Answer { name: name.into(), meaning: Meaning::Values, declared: vec![], may_mix: true })
        .to_vec();
    let answers = Answers { outputs, mask: None, tokens: None };
    let mut c = Comparison::new(Kind::Data, &answers, answers.measure(None, false).unwrap());
    let t = |large: f32, small: f32| [Tensor::f32(&[1], &[large]), Tensor::f32(&[1], &[small])];
    c.add(&batch(1, None), &t(1000.0, 1.0), &t(1000.0, 2.0)).unwrap();
    let worst = c.worst().unwrap();
    assert_eq!((&worst.name[..], c.sqnr_db()), ("small", Some(0.0)));
}

#[test]
fn noise_of_scores_is_not_hidden_by_places_beside_them() {
    let db = |meaning| {
        let mut c = comparing(meaning, false);
        let t = |score: f32| [Tensor::f32(&[1, 3, 64], &[[300.0; 64], [200.0; 64], [score; 64]].concat())];
        c.add(&batch(1, None), &t(0.5), &t(0.4)).unwrap();
        (c.sqnr_db().unwrap().round(), c.worst().unwrap().kind().is_some())
    };
    assert_eq!((db(Meaning::Values), db(Meaning::Embedding)), ((14.0, true), (71.0, false)));
}

#[test]
fn top_five() {
    let answers = Answers {
        outputs: vec![Answer { name: "y".into(), meaning: Meaning::Classes, declared: vec![], may_mix: false }],
        mask: None,
        tokens: None,
    };
    let wanted = "top5".parse().unwrap();
    let mut c = Comparison::new(Kind::Data, &answers, answers.measure(Some(&wanted), true).unwrap());
    let scores = Tensor::f32(&[2, 6], &[6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 6.0, 5.0, 4.0, 3.0, 2.0, f32::NAN]);
    c.add(&batch(2, Some(&[4, 5])), std::slice::from_ref(&scores), std::slice::from_ref(&scores)).unwrap();
    assert_eq!(c.value(), (Some(0.5), Some(0.5)));
    assert!(answers.measure(Some(&wanted), false).is_err(), "without labels");
}

#[test]
fn text_is_read_as_ctc_writes_it() {
    // One of three codes a step, the last of them blank: "0 0 2 0" is "00", "0 2 2 0" too, "0 0 0 2" is "0".
    let steps = |codes: &[usize]| -> Vec<f32> {
        codes.iter().flat_map(|c| (0..3).map(|i| f32::from(u8::from(i == *c)))).collect()
    };
    let (a, b, c) = (steps(&[0, 0, 2, 0, 2, 2]), steps(&[0, 2, 2, 0, 2, 2]), steps(&[0, 0, 0, 2, 2, 2]));
    assert_eq!(value(Meaning::Text, 1, &[1, 6, 3], &a, &b), Some(1.0));
    assert_eq!(value(Meaning::Text, 1, &[6, 1, 3], &a, &c), Some(0.0));
}

#[test]
fn masks_by_a_half_and_by_the_largest() {
    assert_eq!(value(Meaning::Mask, 1, &[1, 1, 2, 2], &[0.9, 0.8, 0.1, 0.0], &[0.9, 0.2, 0.1, 0.0]), Some(0.5));
    assert_eq!(value(Meaning::Mask, 1, &[1, 1, 1, 2], &[0.1, 0.2], &[0.0, 0.0]), Some(1.0), "both are empty");
    // Of two points the classes are 0, 1 and then 1, 1.
    assert_eq!(value(Meaning::Mask, 1, &[1, 2, 1, 2], &[1.0, 0.0, 0.0, 1.0], &[0.0, 0.0, 1.0, 1.0]), Some(0.25));
}

#[test]
fn tokens_that_do_not_count_are_left_out() {
    let answers = Answers {
        outputs: vec![Answer { name: "h".into(), meaning: Meaning::Tokens, declared: vec![], may_mix: false }],
        mask: Some(0),
        tokens: None,
    };
    let mut c = Comparison::new(Kind::Data, &answers, answers.measure(None, false).unwrap());
    let masked = Batch { inputs: vec![Tensor::i64s(&[1, 0]).reshaped(vec![1, 2]).unwrap()], labels: None, len: 1 };
    let hidden = |padding: f32| [Tensor::f32(&[1, 2, 2], &[1.0, 0.0, padding, 7.0])];
    c.add(&masked, &hidden(1.0), &hidden(-50.0)).unwrap();
    assert_eq!((c.metric(), c.value().1), ((Metric::Cosine, None), Some(1.0)));
}

#[test]
fn what_cannot_be_classes_is_not_scored_as_such() {
    let all = |row: [f32; 3]| -> Comparison {
        let mut c = comparing(Meaning::Classes, false);
        let t = [Tensor::f32(&[16, 3], &row.repeat(16))];
        c.add(&batch(16, None), &t, &t).unwrap();
        c
    };
    let same = all([0.0, 2.0, 1.0]);
    assert!(same.metric().0 == Metric::Sqnr && same.agreement().is_none());
    let mut sorted = comparing(Meaning::Classes, false);
    let rows: Vec<f32> = (0..16).flat_map(|i| if i % 2 == 0 { [3.0, 2.0, 1.0] } else { [1.0, 2.0, 3.0] }).collect();
    let t = [Tensor::f32(&[16, 3], &rows)];
    sorted.add(&batch(16, None), &t, &t).unwrap();
    assert!(sorted.metric().1.is_some_and(|why| why.contains("sorted")));
}

#[test]
fn what_is_no_number_is_not_equal() {
    let compared = |values: &[f32]| {
        let t = [Tensor::f32(&[2, 2], values)];
        let mut c = comparing(Meaning::Classes, false);
        c.add(&batch(2, None), &t, &t).unwrap();
        (c.is_equal(), c.agreement())
    };
    assert_eq!(compared(&[f32::NAN; 4]), (false, None));
    assert_eq!(compared(&[1.0, 0.0, f32::NAN, f32::NAN]), (false, Some(1.0)));
    assert_eq!(compared(&[0.0; 4]), (true, Some(1.0)));
    assert!(!comparing(Meaning::Classes, false).is_equal());
}

#[test]
fn refuses_what_cannot_be_compared() {
    let t = Tensor::f32(&[2, 2], &[3.0, 0.0, 0.0, 4.0]);
    let refused = |after: &[Tensor], labels: Option<&[i64]>| {
        comparing(Meaning::Classes, true)
            .add(&batch(2, labels), std::slice::from_ref(&t), after)
            .unwrap_err()
            .exit_code()
            == 7
    };
    let own = [t.clone()];
    assert!(refused(&own, Some(&[0])), "a label is missing");
    assert!(refused(&own, Some(&[0, 2])) && refused(&own, Some(&[-1, 0])), "labels that are not a class");
    assert!(refused(&[], None) && refused(&[Tensor::f32(&[1], &[0.0])], None), "other outputs");
    assert!(refused(&[Tensor::f32(&[2, 2], &[f32::NAN, 0.0, 0.0, 4.0])], None), "a NaN that is new");
}

#[test]
fn whole_numbers_count() {
    let mut c = comparing(Meaning::Values, false);
    c.add(&batch(2, None), &[Tensor::i64s(&[1, 2])], &[Tensor::i64s(&[1, 3])]).unwrap();
    assert!(c.sqnr_db().unwrap().is_finite());
    assert_eq!(value(Meaning::Flags, 2, &[2, 1], &[0.6, 0.4], &[0.9, 0.7]), Some(0.5));
}

#[test]
fn of_many_flags_those_count_that_are_up() {
    let before = [&[0.9, 0.8][..], &[0.1; 98]].concat();
    // Nearly all flags are alike, and all that count are lost.
    assert_eq!(value(Meaning::Flags, 1, &[1, 100], &before, &[0.1; 100]), Some(0.0));
    assert_eq!(value(Meaning::Flags, 1, &[1, 100], &before, &before), Some(1.0));
    // One flag of each sample is an answer, up or down.
    assert_eq!(value(Meaning::Flags, 4, &[4, 1], &[0.9, 0.1, 0.1, 0.1], &[0.1; 4]), Some(0.75));
}

#[test]
fn answers_that_are_all_alike_are_no_measure() {
    let is_doubted = |meaning, shape: &[usize], x: &[f32]| {
        let mut c = comparing(meaning, false);
        for _ in 0..20 {
            c.add(&batch(1, None), &[Tensor::f32(shape, x)], &[Tensor::f32(shape, x)]).unwrap();
        }
        c.metric().1.is_some()
    };
    let (blank, read) = ([1.0, 0.0, 1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0, 1.0, 0.0]);
    assert_eq!([blank, read].map(|x| is_doubted(Meaning::Text, &[1, 3, 2], &x)), [true, false]);
    let (nothing, something) = ([0.1; 4], [0.1, 0.9, 0.1, 0.1]);
    assert_eq!([nothing, something].map(|x| is_doubted(Meaning::Mask, &[1, 1, 2, 2], &x)), [true, false]);
    assert_eq!([[3.0, 3.0], [3.0, 1.0]].map(|x| is_doubted(Meaning::Labels, &[1, 2], &x)), [true, false]);
}

#[test]
fn a_number_in_the_place_of_nan_is_not_the_new_models_fault() {
    let mut c = comparing(Meaning::Values, false);
    c.add(&batch(1, None), &[Tensor::f32(&[2], &[f32::NAN, 1.0])], &[Tensor::f32(&[2], &[5.0, 1.0])]).unwrap();
    assert!(!c.is_equal() && c.sqnr_db() == Some(f64::INFINITY));
}
