//! Every stage against a plain reference, and the stages together.

mod option_values;

use super::candidates::{Candidate, Candidates, Scratch, relative};
use super::chain::Link;
use super::random::Random;
use super::*;
use backend::{LogitsMode, StepOutputs};

const LOGITS: [f32; 5] = [1.0, 3.0, 2.0, -1.0, 3.0];

fn counts(options: SamplerOptions) -> [usize; 5] {
    let mut sampler = Sampler::new(options);
    let mut counts = [0; 5];
    for _ in 0..20_000 {
        counts[sampler.sample(&LOGITS, &[]) as usize] += 1;
    }
    counts
}

/// Options with all stages off.
fn open() -> SamplerOptions {
    SamplerOptions {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        ..SamplerOptions::default()
    }
}

/// Varied logits: a different set for each `salt`.
fn logits(salt: u64, count: usize) -> Vec<f32> {
    let mut random = Random::new(salt);
    (0..count)
        .map(|_| (random.uniform() * 16.0 - 8.0) as f32)
        .collect()
}

/// A history with many repetitions.
fn history(salt: u64, count: usize, tokens: u32) -> Vec<u32> {
    let mut random = Random::new(salt);
    let token = |_| (random.uniform() * f64::from(tokens)) as u32;
    (0..count).map(token).collect()
}

fn softmax(logits: &[f32]) -> Vec<f64> {
    let total: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
    logits.iter().map(|l| f64::from(*l).exp() / total).collect()
}

/// The ids of the candidates, the most likely first.
fn ids(list: &[Candidate]) -> Vec<u32> {
    list.iter().map(|c| c.id).collect()
}

/// All tokens as candidates.
fn all(logits: &[f32]) -> Vec<Candidate> {
    let mut list = vec![];
    backend::topk(&mut list, logits, logits.len());
    list
}

/// The logits after a link that changes them.
fn adjusted(link: &mut Option<Box<dyn Link>>, logits: &[f32], history: &[u32]) -> Vec<f32> {
    let mut candidates = Candidates::of_logits(logits, &mut Scratch::default());
    link.as_mut()
        .unwrap()
        .apply(&mut candidates, history, &mut Random::new(0));
    candidates.row().unwrap().to_vec()
}

/// Token ids with their probabilities, the most likely first.
fn ranked(logits: &[f32]) -> Vec<(u32, f64)> {
    let mut ranked: Vec<(u32, f64)> = (0..).zip(softmax(logits)).collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    ranked
}

#[test]
fn draws_follow_the_softmax() {
    let found = counts(open());
    let total: f32 = LOGITS.iter().map(|l| l.exp()).sum();
    for (count, logit) in found.iter().zip(LOGITS) {
        let expect = logit.exp() / total * 20_000.0;
        assert!(
            (*count as f32 - expect).abs() < 5.0 * expect.sqrt() + 5.0,
            "{found:?}"
        );
    }
}

#[test]
fn each_cut_removes_what_it_says() {
    let kept = |options| counts(options).map(|n| n > 0);
    assert_eq!(
        kept(SamplerOptions { top_k: 3, ..open() }),
        [false, true, true, false, true]
    );
    assert_eq!(
        kept(SamplerOptions {
            top_p: 0.5,
            ..open()
        }),
        [false, true, false, false, true]
    );
    assert_eq!(
        kept(SamplerOptions {
            min_p: 0.3,
            ..open()
        }),
        [false, true, true, false, true]
    );
    assert_eq!(
        kept(SamplerOptions {
            temperature: 0.0,
            ..open()
        }),
        [false, true, false, false, false]
    );
}

/// The sampler as it was when it had only top-k, top-p, min-p and temperature, in one loop.
fn old_draw(logits: &[f32], o: &SamplerOptions, random: f64) -> u32 {
    let mut list: Vec<(f32, u32)> = logits.iter().copied().zip(0..).collect();
    list.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    if o.top_k > 0 {
        list.truncate(o.top_k);
    }
    let top = list[0].0;
    let total: f64 = list.iter().map(|(l, _)| f64::from(l - top).exp()).sum();
    let mut cumulative = 0.0;
    let mut keep = 0;
    for (logit, _) in &list {
        let relative = f64::from(logit - top).exp();
        if keep > 0 && (cumulative >= f64::from(o.top_p) || relative < f64::from(o.min_p)) {
            break;
        }
        cumulative += relative / total;
        keep += 1;
    }
    list.truncate(keep);
    let weight = |logit: f32| f64::from((logit - top) / o.temperature).exp();
    let mut left = random * list.iter().map(|(l, _)| weight(*l)).sum::<f64>();
    for (logit, id) in &list {
        left -= weight(*logit);
        if left < 0.0 {
            return *id;
        }
    }
    list[list.len() - 1].1
}

#[test]
fn the_stages_together_draw_as_the_one_loop_did() {
    for (temperature, top_k, top_p, min_p) in [
        (0.8, 40, 0.95, 0.05),
        (1.5, 0, 0.9, 0.0),
        (0.3, 7, 1.0, 0.2),
        (2.0, 0, 1.0, 0.0),
    ] {
        let options = SamplerOptions {
            temperature,
            top_k,
            top_p,
            min_p,
            seed: 7,
            ..SamplerOptions::default()
        };
        let mut sampler = Sampler::new(options.clone());
        let mut random = Random::new(7);
        for salt in 0..300 {
            let logits = logits(salt, 97);
            let expect = old_draw(&logits, &options, random.uniform());
            assert_eq!(sampler.sample(&logits, &[]), expect, "{options:?}");
        }
    }
}

#[test]
fn a_seed_is_a_sequence() {
    let run = |seed| {
        let mut sampler = Sampler::new(SamplerOptions { seed, ..open() });
        (0..32)
            .map(|_| sampler.sample(&LOGITS, &[]))
            .collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn new_options_go_on_with_the_sequence_of_their_seed() {
    let with_seed = |seed| SamplerOptions { seed, ..open() };
    let mut one = Sampler::new(with_seed(1));
    let expect: Vec<u32> = (0..32).map(|_| one.sample(&LOGITS, &[])).collect();
    let mut changed = Sampler::new(with_seed(1));
    let mut found: Vec<u32> = (0..16).map(|_| changed.sample(&LOGITS, &[])).collect();
    changed.set_options(with_seed(1));
    found.extend((16..32).map(|_| changed.sample(&LOGITS, &[])));
    assert_eq!(found, expect);
    changed.set_options(with_seed(2));
    let mut two = Sampler::new(with_seed(2));
    for _ in 0..32 {
        assert_eq!(changed.sample(&LOGITS, &[]), two.sample(&LOGITS, &[]));
    }
}

#[test]
fn the_penalty_counts_recent_tokens_once() {
    let options = SamplerOptions {
        temperature: 0.0,
        repeat_penalty: 1.4,
        repeat_last_n: 2,
        ..open()
    };
    let mut sampler = Sampler::new(options);
    assert_eq!(sampler.sample(&LOGITS, &[1, 1]), 4);
    assert_eq!(
        sampler.sample(&LOGITS, &[1, 1, 4, 4]),
        1,
        "only the last two count"
    );
    assert_eq!(sampler.sample(&LOGITS, &[]), 1);
}

#[test]
fn penalties_equal_a_count_of_each_token() {
    let options = SamplerOptions {
        repeat_penalty: 1.3,
        frequency_penalty: 0.25,
        presence_penalty: -0.5,
        repeat_last_n: 40,
        ..open()
    };
    for salt in 0..20 {
        let history = history(salt, 100, 30);
        let before = logits(salt, 24);
        let found = adjusted(&mut penalties::link(&options), &before, &history);
        for (id, (before, found)) in (0..).zip(before.iter().zip(&found)) {
            let count = history[60..].iter().filter(|t| **t == id).count();
            let mut expect = *before;
            if count > 0 {
                expect *= if expect > 0.0 { 1.0 / 1.3 } else { 1.3 };
                expect -= count as f32 * 0.25 - 0.5;
            }
            assert!((found - expect).abs() < 1e-5, "{id}: {found} {expect}");
        }
    }
}

#[test]
fn a_bias_moves_one_token_before_all_stages() {
    let with = |logit_bias| SamplerOptions {
        temperature: 0.0,
        logit_bias,
        ..open()
    };
    let best = |bias: &[(u32, f32)]| Sampler::new(with(bias.to_vec())).sample(&LOGITS, &[]);
    assert_eq!(best(&[(3, 4.5)]), 3);
    assert_eq!(best(&[(3, 2.5), (3, 2.0)]), 3, "two of one token add up");
    assert_eq!(best(&[(1, f32::NEG_INFINITY)]), 4);
    assert_eq!(best(&[(1, -0.1), (99, 9.0)]), 4);
}

#[test]
fn typical_p_keeps_what_a_search_of_all_tokens_keeps() {
    for salt in 0..40 {
        let logits: Vec<f32> = logits(salt, 50).iter().map(|l| l * 0.4).collect();
        for p in [0.1, 0.5, 0.9, 0.999] {
            let probabilities = softmax(&logits);
            let entropy: f64 = probabilities.iter().map(|p| -p * p.ln()).sum();
            let distance = |id: &u32| (-probabilities[*id as usize].ln() - entropy).abs();
            let mut order: Vec<u32> = (0..50).collect();
            order.sort_by(|a, b| distance(a).total_cmp(&distance(b)));
            let sum = |n: usize| -> f64 {
                order[..n]
                    .iter()
                    .map(|id| probabilities[*id as usize])
                    .sum()
            };
            let n = (1..=50).find(|n| sum(*n) > f64::from(p)).unwrap_or(50);
            let mut expect = order[..n].to_vec();
            expect.sort_unstable();
            let mut list = all(&logits);
            typical_p::filter(&mut list, p);
            assert!(list.windows(2).all(|two| two[0].logit >= two[1].logit));
            let mut found = ids(&list);
            found.sort_unstable();
            assert_eq!(found, expect, "{p}");
        }
        let mut list = all(&logits);
        typical_p::filter(&mut list, 1.0);
        assert_eq!(list.len(), 50);
    }
    // The most likely token can be the one that is not typical: the others share the entropy.
    let mut logits = vec![0.0; 100];
    logits[17] = 3.0;
    let options = SamplerOptions {
        temperature: 0.0,
        typical_p: 0.2,
        ..open()
    };
    assert_ne!(Sampler::new(options).sample(&logits, &[]), 17);
}

#[test]
fn top_p_and_min_p_keep_what_a_sum_of_probabilities_keeps() {
    for salt in 0..40 {
        let logits = logits(salt, 50);
        let ranked = ranked(&logits);
        for p in [0.2, 0.5, 0.95] {
            let sum = |n: usize| -> f64 { ranked[..n].iter().map(|(_, p)| p).sum() };
            let n = (1..=50).find(|n| sum(*n) >= p).unwrap();
            let mut list = all(&logits);
            top_p::filter(&mut list, p as f32);
            let expect: Vec<u32> = ranked[..n].iter().map(|(id, _)| *id).collect();
            assert_eq!(ids(&list), expect, "top-p {p}");

            let likely = ranked.iter().filter(|(_, q)| *q >= p * ranked[0].1);
            let expect: Vec<u32> = likely.map(|(id, _)| *id).collect();
            let mut list = all(&logits);
            min_p::filter(&mut list, p as f32);
            assert_eq!(ids(&list), expect, "min-p {p}");
        }
    }
}

#[test]
fn xtc_removes_the_top_choices_but_the_last_of_them() {
    for salt in 0..60 {
        let logits: Vec<f32> = logits(salt, 12).iter().map(|l| l * 0.2).collect();
        for threshold in [0.02, 0.1, 0.15, 0.3] {
            let ranked = ranked(&logits);
            let above = ranked.iter().filter(|(_, p)| *p >= threshold).count();
            let first = above.saturating_sub(1);
            let expect: Vec<u32> = ranked[first..].iter().map(|(id, _)| *id).collect();
            let mut list = all(&logits);
            xtc::filter(&mut list, 0.6, threshold as f32, 0.59);
            assert_eq!(ids(&list), expect, "{threshold}");
            let mut list = all(&logits);
            xtc::filter(&mut list, 0.6, threshold as f32, 0.61);
            assert_eq!(list.len(), 12, "the chance was missed");
        }
        let mut list = all(&logits);
        xtc::filter(&mut list, 1.0, 0.51, 0.0);
        assert_eq!(list.len(), 12, "a threshold above one half");
    }
    let with = |xtc_probability| SamplerOptions {
        xtc_probability,
        xtc_threshold: 0.1,
        ..open()
    };
    // Tokens 1 and 4 are the most likely; token 2 is the last one above the threshold.
    let always = counts(with(1.0));
    assert_eq!((always[1], always[4]), (0, 0), "{always:?}");
    let half = counts(with(0.5));
    let never = counts(with(0.0));
    let share = half[1] as f64 / never[1] as f64;
    assert!((share - 0.5).abs() < 0.05, "{half:?} {never:?}");
}

/// The DRY penalty by trying every earlier position and every length.
fn plain_dry(history: &[u32], o: &SamplerOptions, id: u32) -> f32 {
    let history = &history[history.len().saturating_sub(o.dry_penalty_last_n)..];
    let n = history.len();
    if n <= o.dry_allowed_length {
        return 0.0;
    }
    // Text up to the end of the last breaker is not followed.
    let ends = |at: usize| {
        o.dry_breaker_tokens
            .iter()
            .any(|breaker| history[..at].ends_with(breaker))
    };
    let limit = n - (1..=n).rev().find(|at| ends(*at)).unwrap_or(0);
    let longest = (1..n)
        .filter(|at| history[*at] == id)
        .map(|at| {
            let same = |length: usize| history[at - length..at] == history[n - length..];
            (0..=at).take_while(|length| same(*length)).last().unwrap()
        })
        .max()
        .unwrap_or(0)
        .min(limit);
    match longest.checked_sub(o.dry_allowed_length) {
        Some(more) if longest > 0 => o.dry_multiplier * o.dry_base.powi(more as i32),
        _ => 0.0,
    }
}

#[test]
fn dry_equals_a_search_of_all_repetitions() {
    for (allowed, last_n, breakers) in [
        (2, usize::MAX, vec![]),
        (1, 30, vec![]),
        (2, usize::MAX, vec![vec![3]]),
        (1, usize::MAX, vec![vec![0, 1], vec![2, 2]]),
    ] {
        let options = SamplerOptions {
            dry_multiplier: 0.8,
            dry_allowed_length: allowed,
            dry_penalty_last_n: last_n,
            dry_breaker_tokens: breakers,
            ..open()
        };
        let mut dry = dry::link(&options);
        let mut penalised = 0;
        for salt in 0..300 {
            let history = history(salt, 60, 4);
            let found = adjusted(&mut dry, &[0.0; 5], &history);
            for (id, found) in (0..).zip(found) {
                let expect = -plain_dry(&history, &options, id);
                let close = (found - expect).abs() <= 1e-4 * expect.abs();
                assert!(close, "{history:?} {options:?} {id}: {found} {expect}");
                penalised += usize::from(found != 0.0);
            }
        }
        assert!(penalised > 100, "{penalised}");
    }
}

#[test]
fn dry_stays_finite_and_can_be_off() {
    let options = SamplerOptions {
        dry_multiplier: 0.8,
        ..open()
    };
    let mut dry = dry::link(&options);
    let found = adjusted(&mut dry, &[0.0; 2], &vec![1; 4000]);
    assert!(found[1].is_finite() && found[1] < -1e30, "{found:?}");
    for off in [
        SamplerOptions {
            dry_multiplier: 0.0,
            ..options.clone()
        },
        SamplerOptions {
            dry_penalty_last_n: 0,
            ..options.clone()
        },
    ] {
        assert!(dry::link(&off).is_none());
    }
}

#[test]
fn an_option_out_of_range_is_named() {
    assert!(SamplerOptions::default().check(10).is_ok());
    type Change = fn(&mut SamplerOptions);
    let cases: [(Change, &str); 6] = [
        (
            |o| o.temperature = -1.0,
            "temperature is -1, must be a number of at least 0",
        ),
        (
            |o| o.typical_p = 1.5,
            "typical_p is 1.5, must be a number from 0 to 1",
        ),
        (|o| o.presence_penalty = f32::NAN, "presence_penalty is NaN"),
        (
            |o| o.dry_base = 0.5,
            "dry_base is 0.5, must be a number of at least 1",
        ),
        (
            |o| o.logit_bias = vec![(10, 1.0)],
            "logit_bias: token id 10 is outside the model's vocabulary of 10",
        ),
        (
            |o| o.logit_bias = vec![(1, f32::INFINITY)],
            "logit_bias of token 1 is inf",
        ),
    ];
    for (change, says) in cases {
        let mut options = SamplerOptions::default();
        change(&mut options);
        let error = options.check(10).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn probabilities_are_relative_to_the_first() {
    let found: Vec<f64> = relative(&all(&LOGITS)).collect();
    let expect = [0.0f64, 0.0, -1.0, -2.0, -4.0].map(f64::exp);
    for (found, expect) in found.iter().zip(expect) {
        assert!((found - expect).abs() < 1e-9);
    }
}

/// Options with random numbers, of which some are at the ends of their ranges.
fn random_options(random: &mut Random, seed: u64) -> SamplerOptions {
    let mut one_of = |numbers: &[f32]| {
        let at = random.uniform() * (numbers.len() + 1) as f64;
        let other = random.uniform() as f32;
        numbers.get(at as usize).copied().unwrap_or(other)
    };
    SamplerOptions {
        temperature: 2.0 * one_of(&[0.0, 0.4, 0.5]),
        top_k: one_of(&[0.0, 1.0, 2.0, 5.0, 40.0, 300.0, 1000.0]) as usize,
        top_p: one_of(&[1.0, 0.95, 0.0]),
        min_p: one_of(&[0.0, 0.05, 1.0]),
        typical_p: one_of(&[1.0, 1.0, 1.0]),
        xtc_probability: one_of(&[0.0, 0.0, 1.0]),
        xtc_threshold: one_of(&[0.0, 0.1, 0.6]),
        seed,
        ..SamplerOptions::default()
    }
}

/// Random logits with many ties, infinities, zeros of both signs and, now and then, NaN.
fn odd_logits(random: &mut Random) -> Vec<f32> {
    let odd = [f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, f32::NAN];
    let ties = random.uniform() < 0.5;
    let odds = random.uniform() * 0.2;
    let len = 1 + (random.uniform() * 500.0) as usize;
    let mut logit = || {
        if random.uniform() < odds * odds {
            return odd[(random.uniform() * 5.0) as usize];
        }
        let x = (random.uniform() * 20.0 - 10.0) as f32;
        if ties { x.round() } else { x }
    };
    (0..len).map(|_| logit()).collect()
}

/// A sampler draws the same token from the outputs that it wants as from all logits. More outputs than it wants, which
/// another sampler of a batch may want, give that token too.
#[test]
fn the_wanted_outputs_give_the_tokens_of_all_logits() {
    let mut random = Random::new(27);
    let (mut best, mut drawn) = (0, 0);
    for seed in 0..3000 {
        let options = random_options(&mut random, seed);
        let [mut whole, mut few, mut more] = [(); 3].map(|()| Sampler::new(options.clone()));
        let wanted = few.wanted();
        best += usize::from(wanted != LogitsMode::Logits);
        for _ in 0..4 {
            let logits = odd_logits(&mut random);
            let mut outputs = StepOutputs::new(wanted);
            outputs.fill(1, logits.len(), &logits);
            assert!(outputs.row(0).holds(wanted, logits.len()));
            let expect = whole.sample(&logits, &[]);
            let found = few.sample_row(outputs.row(0), &[]);
            assert_eq!(found, expect, "{options:?} of {logits:?}");
            outputs.want(wanted.and(LogitsMode::TopK(50)));
            outputs.fill(1, logits.len(), &logits);
            let found = more.sample_row(outputs.row(0), &[]);
            assert_eq!(found, expect, "{options:?} of more of {logits:?}");
            let first = backend::argmax(&logits);
            drawn += usize::from(wanted != LogitsMode::Logits && found != first);
        }
    }
    assert!(best > 1500 && drawn > 1000, "{best} {drawn}");
}

#[test]
fn stages_before_top_k_want_all_logits() {
    let wanted = |options: SamplerOptions| Sampler::new(options).wanted();
    assert_eq!(wanted(SamplerOptions::default()), LogitsMode::TopK(40));
    let greedy = SamplerOptions {
        temperature: 0.0,
        ..SamplerOptions::default()
    };
    assert_eq!(wanted(greedy.clone()), LogitsMode::Argmax);
    let untypical = SamplerOptions {
        typical_p: 0.5,
        ..greedy.clone()
    };
    assert_eq!(wanted(untypical), LogitsMode::TopK(40));
    assert_eq!(wanted(open()), LogitsMode::Logits);
    let changes: [fn(&mut SamplerOptions); 5] = [
        |o| o.logit_bias = vec![(3, 1.0)],
        |o| o.repeat_penalty = 1.1,
        |o| o.frequency_penalty = 0.5,
        |o| o.presence_penalty = 0.5,
        |o| o.dry_multiplier = 0.8,
    ];
    for change in changes {
        for mut options in [greedy.clone(), SamplerOptions::default()] {
            change(&mut options);
            assert_eq!(wanted(options.clone()), LogitsMode::Logits, "{options:?}");
        }
    }
}

/// The default chain named in full, in any spelling, is the default chain. Samplers run in the order in which they are named.
#[test]
fn samplers_run_in_the_order_of_their_names() {
    let option = SamplingOption::find("samplers").unwrap();
    let with = |names: &str| {
        let mut options = SamplerOptions { seed: 3, ..open() };
        option.set_texts(&mut options, &[names]).unwrap();
        options
    };
    let all = "penalties;dry;top-k;typical;nucleus;min-p;xtc;temp";
    assert!(
        SamplerOptions { seed: 3, ..open() }
            .samplers
            .starts_with(&["penalties", "dry"])
    );
    let all = with(all).samplers;
    assert_eq!(all.last(), Some(&"temperature"));
    let error = option
        .set_texts(&mut SamplerOptions::default(), &["top_k;heat"])
        .unwrap_err();
    assert!(
        error.contains("names of samplers (penalties, dry, "),
        "{error}"
    );
    // A penalty after top-k changes only what top-k has left.
    let late = |names| {
        let options = SamplerOptions {
            temperature: 0.0,
            top_k: 2,
            presence_penalty: 10.0,
            ..with(names)
        };
        Sampler::new(options).sample(&LOGITS, &[1, 4])
    };
    assert_eq!(late("penalties;top_k;temperature"), 2);
    assert_eq!(late("top_k;penalties;temperature"), 1);
    // Without a name, a sampler does not run.
    assert_eq!(late("top_k;temperature"), 1);
    let greedy = |names| {
        Sampler::new(SamplerOptions {
            top_k: 1,
            ..with(names)
        })
        .sample(&LOGITS, &[])
    };
    assert!((0..50).all(|_| greedy("top_k") == 1));
    assert_eq!(
        Sampler::new(SamplerOptions {
            top_k: 7,
            ..with("top_k;penalties")
        })
        .wanted(),
        LogitsMode::TopK(7)
    );
    // A temperature before other samplers changes the probabilities that they see.
    let kept = |names| {
        let options = SamplerOptions {
            temperature: 100.0,
            min_p: 0.5,
            ..with(names)
        };
        counts(options).iter().filter(|n| **n > 0).count()
    };
    assert_eq!(
        (kept("min_p;temperature"), kept("temperature;min_p")),
        (2, 5)
    );
}

/// Mirostat 2 by its definition, with the probabilities of all tokens.
struct PlainMirostat {
    mu: f64,
    tau: f64,
    eta: f64,
    /// The sum of the surprises of all drawn tokens.
    surprises: f64,
}

impl PlainMirostat {
    fn draw(&mut self, logits: &[f32], random: f64) -> u32 {
        let mut list = ranked(logits);
        let kept = list.iter().take_while(|(_, p)| -p.log2() <= self.mu);
        let kept = kept.count().max(1);
        list.truncate(kept);
        let total: f64 = list.iter().map(|(_, p)| p).sum();
        let mut left = random;
        let found = list.iter().find(|(_, p)| {
            left -= p / total;
            left < 0.0
        });
        let (id, p) = found.unwrap_or(&list[list.len() - 1]);
        let surprise = -(p / total).log2();
        self.surprises += surprise;
        self.mu -= self.eta * (surprise - self.tau);
        *id
    }
}

#[test]
fn mirostat_draws_as_its_definition_and_reaches_its_target() {
    for (tau, eta, temperature, scale) in [
        (3.0, 0.1, 1.0, 1.0),
        (5.0, 0.1, 0.7, 0.4),
        (1.0, 0.5, 1.5, 0.7),
        (0.0, 0.2, 1.0, 1.0),
    ] {
        let options = SamplerOptions {
            mirostat: 2,
            mirostat_tau: tau,
            mirostat_eta: eta,
            temperature,
            seed: 11,
            // Samplers that remove tokens do not run.
            top_k: 1,
            min_p: 1.0,
            ..SamplerOptions::default()
        };
        let mut sampler = Sampler::new(options.clone());
        assert_eq!(sampler.wanted(), LogitsMode::Logits);
        let mut random = Random::new(11);
        let mut plain = PlainMirostat {
            mu: 2.0 * f64::from(tau),
            tau: tau.into(),
            eta: eta.into(),
            surprises: 0.0,
        };
        let rounds = 2000;
        for salt in 0..rounds {
            let logits: Vec<f32> = logits(salt, 300).iter().map(|l| l * scale).collect();
            let scaled: Vec<f32> = logits.iter().map(|l| l / temperature).collect();
            let expect = plain.draw(&scaled, random.uniform());
            // A clone has the state of the sequence.
            let mut fork = sampler.clone();
            let found = sampler.sample(&logits, &[]);
            assert_eq!(found, expect, "{options:?} {salt}");
            assert_eq!(fork.sample(&logits, &[]), expect);
        }
        let mean = plain.surprises / rounds as f64;
        assert!((mean - f64::from(tau)).abs() < 0.2, "{mean} {tau}");
    }
    let greedy = SamplerOptions {
        mirostat: 2,
        temperature: 0.0,
        ..SamplerOptions::default()
    };
    assert_eq!(Sampler::new(greedy).wanted(), LogitsMode::Argmax);
    let wrong = SamplerOptions {
        mirostat: 1,
        ..SamplerOptions::default()
    };
    let error = wrong.check(10).unwrap_err().to_string();
    assert!(error.contains("mirostat is 1, must be 0 or 2"), "{error}");
}

#[test]
fn top_n_sigma_keeps_what_its_definition_keeps() {
    for salt in 0..60 {
        let mut logits = logits(salt, 120);
        if salt % 2 == 0 {
            logits[(salt % 7) as usize] = f32::NEG_INFINITY;
        }
        let finite: Vec<f64> = logits
            .iter()
            .filter(|l| l.is_finite())
            .map(|l| f64::from(*l))
            .collect();
        let mean = finite.iter().sum::<f64>() / finite.len() as f64;
        let deviations = finite.iter().map(|x| (x - mean).powi(2));
        let sigma = (deviations.sum::<f64>() / finite.len() as f64).sqrt();
        let top = finite.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        for n in [0.01, 0.5, 1.0, 2.5] {
            let options = SamplerOptions {
                top_n_sigma: n,
                ..open()
            };
            let ranked = ranked(&logits).into_iter();
            let expect: Vec<u32> = ranked
                .map(|(id, _)| id)
                .filter(|id| f64::from(logits[*id as usize]) >= top - f64::from(n) * sigma)
                .collect();
            let mut link = top_n_sigma::link(&options).unwrap();
            let mut random = Random::new(0);
            let mut scratch = Scratch::default();
            // The same from all logits and from a list of all tokens.
            let all = all(&logits);
            for mut candidates in [
                Candidates::of_logits(&logits, &mut scratch),
                Candidates::of_topk(&all, &mut scratch),
            ] {
                link.apply(&mut candidates, &[], &mut random);
                assert_eq!(ids(candidates.list()), expect, "{n} of {logits:?}");
            }
        }
    }
    let wanted = |temperature| {
        let options = SamplerOptions {
            top_n_sigma: 1.0,
            temperature,
            ..SamplerOptions::default()
        };
        Sampler::new(options).wanted()
    };
    assert_eq!(
        (wanted(0.8), wanted(0.0)),
        (LogitsMode::Logits, LogitsMode::Argmax)
    );
    assert!(top_n_sigma::link(&SamplerOptions::default()).is_none());
}
