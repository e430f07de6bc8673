use super::*;
use crate::LayerConfig;
use crate::RingPolicy;
use proptest::prelude::*;

fn config(capacity: u32, windows: &[Option<u32>], ring: Option<RingPolicy>) -> CacheConfig {
    let layer = |&window| LayerConfig {
        kv_heads: 1,
        key_dim: 4,
        value_dim: 4,
        window,
        sinks: 0,
    };
    CacheConfig {
        ring,
        ..CacheConfig::new(capacity, windows.iter().map(layer).collect())
    }
}

fn step(cache: &mut Contiguous, tokens: u32) -> Result<StepPlan, KvError> {
    let positions: Vec<i32> = (cache.len()..cache.len() + tokens)
        .map(|p| p as i32)
        .collect();
    let mut plan = StepPlan::default();
    cache.plan_declared(&positions, &mut plan)?;
    cache.commit(&plan);
    Ok(plan)
}

#[test]
fn refusals_name_the_number_and_change_nothing() {
    let mut cache = Contiguous::new(&config(4, &[None], None));
    step(&mut cache, 2).unwrap();
    for (positions, message) in [
        (&[][..], "a step needs at least one token"),
        (
            &[3][..],
            "token 0 of the step has position 3, but the cache continues at 2",
        ),
        (
            &[2, 2][..],
            "token 1 of the step has position 2, but the cache continues at 3",
        ),
        (
            &[-1][..],
            "token 0 of the step has position -1, but the cache continues at 2",
        ),
        (
            &[2, 3, 4][..],
            "the cache is full: 5 cells are needed and its capacity is 4",
        ),
    ] {
        assert_eq!(
            cache
                .plan_declared(positions, &mut StepPlan::default())
                .unwrap_err()
                .to_string(),
            message
        );
        assert_eq!(cache.len(), 2);
    }
    assert_eq!(
        cache.rewind(3).unwrap_err().to_string(),
        "cannot rewind to 3: the cache holds 2"
    );
    assert!(cache.can_extend(2) && !cache.can_extend(3));
    cache.rewind(1).unwrap();
    assert!(
        cache
            .plan_declared(&[1, 2, 3], &mut StepPlan::default())
            .is_ok()
    );
}

#[test]
fn a_ring_refuses_what_it_has_overwritten() {
    let ring = RingPolicy {
        max_step: 4,
        max_rewind: 3,
    };
    let mut cache = Contiguous::new(&config(100, &[Some(5), None], Some(ring)));
    assert_eq!(cache.max_step(), 4);
    let error = step(&mut cache, 5).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a step of 5 tokens is too long: the ring layers allow 4"
    );
    for _ in 0..8 {
        step(&mut cache, 1).unwrap();
    }
    // Eight slots hold all eight tokens: nothing is lost yet.
    assert_eq!(cache.rewind_floor(), 0);
    step(&mut cache, 1).unwrap();
    assert_eq!(cache.rewind_floor(), 5);
    cache.rewind(6).unwrap();
    // The rows written at 6 to 8 before the rewind overwrote older ones, whatever the length is now.
    assert_eq!(cache.rewind_floor(), 5);
    let error = cache.rewind(4).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot rewind to 4: the shortest possible length is 5"
    );
    cache.clear();
    assert_eq!((cache.len(), cache.rewind_floor()), (0, 0));
}

#[test]
fn a_failed_step_may_have_overwritten_a_ring() {
    let ring = RingPolicy {
        max_step: 4,
        max_rewind: 4,
    };
    let mut cache = Contiguous::new(&config(100, &[Some(3)], Some(ring)));
    step(&mut cache, 3).unwrap();
    step(&mut cache, 3).unwrap();
    assert_eq!(cache.rewind_floor(), 0);
    let mut plan = StepPlan::default();
    cache.plan_declared(&[6, 7, 8], &mut plan).unwrap();
    cache.abort(Some(&plan));
    assert_eq!((cache.len(), cache.rewind_floor()), (6, 5));
}

proptest! {
    /// Rows are simulated: a cell holds the position last written to it. A query must see exactly the positions of its
    /// window, each once, in order, in cells that hold them.
    #[test]
    fn every_query_sees_its_window_and_nothing_stale(
        steps in prop::collection::vec((1u32..9, 0u32..12, any::<bool>()), 1..40),
        window in prop::option::of(1u32..12),
        ring in prop::option::of((1u32..10, 0u32..10)),
    ) {
        let ring = ring.map(|(max_step, max_rewind)| RingPolicy { max_step, max_rewind });
        let windows = [window, None, Some(7)];
        let mut cache = Contiguous::new(&config(1000, &windows, ring));
        let mut cells: Vec<Vec<(u32, u32)>> = vec![vec![(u32::MAX, 0); 1000]; 3];
        let mut history: Vec<u32> = vec![];
        let mut stamp = 0;
        for (tokens, back, fails) in steps {
            let target = cache.len().saturating_sub(back);
            if target >= cache.rewind_floor() {
                cache.rewind(target).unwrap();
                history.truncate(target as usize);
            } else {
                prop_assert!(cache.rewind(target).is_err());
            }
            let tokens = tokens.min(cache.max_step());
            let start = cache.len();
            let positions: Vec<i32> = (start..start + tokens).map(|p| p as i32).collect();
            let mut plan = StepPlan::default();
            cache.plan_declared(&positions, &mut plan).unwrap();
            let mut tried = history.clone();
            for i in 0..tokens as usize {
                stamp += 1;
                tried.push(stamp);
                for (layer, rows) in cells.iter_mut().enumerate() {
                    let cell = plan.layer(layer).writes[i];
                    prop_assert!(cell < plan.layer(layer).cells);
                    rows[cell as usize] = (start + i as u32, stamp);
                }
            }
            for (layer, window) in windows.iter().enumerate() {
                let plan = plan.layer(layer);
                for (i, p) in (start..).take(tokens as usize).enumerate() {
                    let seen: Vec<(u32, u32)> = plan
                        .visible
                        .runs(i)
                        .flat_map(|r| r.cells())
                        .map(|c| cells[layer][c as usize])
                        .collect();
                    let first = window.map_or(0, |w| (p + 1).saturating_sub(w));
                    let expect: Vec<(u32, u32)> = (first..=p).map(|k| (k, tried[k as usize])).collect();
                    prop_assert_eq!(seen, expect, "layer {} query {}", layer, p);
                }
            }
            if fails {
                cache.abort(Some(&plan));
            } else {
                cache.commit(&plan);
                history = tried;
            }
        }
    }
}
