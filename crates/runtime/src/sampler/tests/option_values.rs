//! How options are read from texts and values.

use super::*;

/// Each option takes its own text and default, and refuses what is not in its range.
#[test]
fn options_are_set_from_texts_and_values() {
    let defaults = SamplerOptions::default();
    for option in SAMPLING_OPTIONS {
        assert!(std::ptr::eq(
            SamplingOption::find(option.name).unwrap(),
            option
        ));
        assert!(std::ptr::eq(
            SamplingOption::find(&option.flag()).unwrap(),
            option
        ));
        let mut options = defaults.clone();
        let wrong = option.set(&mut options, OptionValue::Other).unwrap_err();
        assert_eq!(wrong, format!("must be {}", option.range()));
        assert_eq!(options, defaults, "{} changed", option.name);
        if !option.is_list() {
            option
                .set_texts(&mut options, &[option.text(&defaults)])
                .unwrap();
            assert_eq!(options, defaults, "{}", option.name);
        }
        assert!(!option.help().is_empty() && !option.help().contains('\n'));
    }
    let set = |name: &str, value| {
        let mut options = SamplerOptions::default();
        SamplingOption::find(name)
            .unwrap()
            .set(&mut options, value)?;
        Ok::<_, String>(options)
    };
    use OptionValue::{Integer, List, Number, Object, Text};
    assert_eq!(set("top_k", Integer(-1)).unwrap().top_k, 0);
    assert_eq!(set("top_k", Number(7.0)).unwrap().top_k, 7);
    assert_eq!(
        set("repeat-last-n", Integer(-1)).unwrap().repeat_last_n,
        usize::MAX
    );
    assert!(set("dry_allowed_length", Integer(-1)).is_err());
    assert_eq!(set("seed", Integer(-5)).unwrap().seed, -5i64 as u64);
    assert_ne!(set("seed", Integer(-1)).unwrap().seed, u64::MAX);
    for wrong in [Number(f64::NAN), Integer(-1), Text("1".to_owned())] {
        let error = set("temperature", wrong).unwrap_err();
        assert_eq!(error, "must be a number of at least 0");
    }
    let bias = |bias: OptionValue| {
        let set = set("logit_bias", Object(vec![("7".to_owned(), bias)]));
        set.map(|options| options.logit_bias[0].1)
    };
    assert_eq!(bias(Number(1.5)), Ok(1.5));
    assert_eq!(bias(Integer(-100)), Ok(f32::NEG_INFINITY));
    assert_eq!(bias(Text("-inf".to_owned())), Ok(f32::NEG_INFINITY));
    assert!(bias(Number(f64::INFINITY)).is_err());
    let texts = List(vec![Text("a".to_owned()), Text("b".to_owned())]);
    assert_eq!(
        set("dry_sequence_breakers", texts)
            .unwrap()
            .dry_sequence_breakers,
        ["a", "b"]
    );
    assert!(set("dry_sequence_breakers", List(vec![Text(String::new())])).is_err());
}

#[test]
fn a_bias_is_read_in_each_form() {
    let read = |text: &str| {
        let mut options = SamplerOptions::default();
        SamplingOption::find("logit-bias")
            .unwrap()
            .set_texts(&mut options, &[text])?;
        Ok::<_, String>(options.logit_bias)
    };
    assert_eq!(read("15043+1"), Ok(vec![(15043, 1.0)]));
    assert_eq!(read("15043-1.5,7:2"), Ok(vec![(15043, -1.5), (7, 2.0)]));
    assert_eq!(read("7:-inf"), Ok(vec![(7, f32::NEG_INFINITY)]));
    for wrong in [
        "",
        "7",
        "+1",
        "a+1",
        "7+",
        "7+inf",
        "7:nan",
        "99999999999+1",
    ] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn escapes_of_breakers_become_characters() {
    let mut options = SamplerOptions::default();
    let option = SamplingOption::find("dry-sequence-breaker").unwrap();
    option
        .set_texts(&mut options, &[r#"a\n\t\"\\b\x\"#])
        .unwrap();
    assert_eq!(options.dry_sequence_breakers, ["a\n\t\"\\b\\x\\"]);
    option.set_texts(&mut options, &["none"]).unwrap();
    assert!(options.dry_sequence_breakers.is_empty());
}
