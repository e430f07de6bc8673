use super::*;
use proptest::prelude::*;

const MAX: u32 = i32::MAX as u32;

fn layer(kv_heads: usize, key_dim: usize, value_dim: usize, window: Option<u32>) -> LayerConfig {
    LayerConfig {
        kv_heads,
        key_dim,
        value_dim,
        window,
        sinks: 0,
    }
}

#[test]
fn storage_types_are_read_back_from_their_names() {
    for storage in KvStorage::ALL {
        assert_eq!(KvStorage::from_name(storage.name()), Some(storage));
        assert_eq!(storage.to_string(), storage.name());
    }
    let names = KvStorage::ALL.map(KvStorage::name);
    assert_eq!(
        names,
        [
            "f32", "f16", "bf16", "f8_e4m3", "q8", "q8g64", "q4", "q4g64", "q4h",
        ]
    );
    let q4 = Some(KvStorage::Q4(QuantGroup::G32));
    for (name, storage) in [
        ("fp8", Some(KvStorage::F8E4M3)),
        ("fp8_e4m3", Some(KvStorage::F8E4M3)),
        ("fp8_e5m2", None),
        ("q8_0", Some(KvStorage::Q8(QuantGroup::G32))),
        ("q4_0", q4),
        ("q4_1", q4),
        ("q5_0", None),
        ("", None),
    ] {
        assert_eq!(KvStorage::from_name(name), storage, "{name:?}");
    }
    assert!(!QuantGroup::G32.is_empty() && !QuantGroup::G64.is_empty());
}

#[test]
fn rows_have_the_bytes_of_their_layout() {
    // The sum of scales, offsets and codes, counted by hand.
    let [q8, q4] = [KvStorage::Q8, KvStorage::Q4];
    for (storage, dim, bytes) in [
        (KvStorage::F32, 80, 320),
        (KvStorage::F16, 80, 160),
        (KvStorage::BF16, 80, 160),
        (KvStorage::F8E4M3, 80, 80),
        (KvStorage::F8E4M3, 65, 65),
        (q8(QuantGroup::G32), 64, 2 * 4 + 64),
        (q8(QuantGroup::G32), 65, 3 * 4 + 80),
        (q8(QuantGroup::G64), 64, 4 + 64),
        (q8(QuantGroup::G64), 65, 2 * 4 + 80),
        (q4(QuantGroup::G32), 64, 2 * 4 + 32),
        (q4(QuantGroup::G32), 65, 3 * 4 + 48),
        (q4(QuantGroup::G64), 64, 4 + 32),
        (q4(QuantGroup::G64), 65, 2 * 4 + 48),
    ] {
        assert_eq!(storage.row_bytes(dim), bytes, "{storage} rows of {dim}");
    }
}

#[test]
fn a_configuration_counts_the_bytes_of_both_sides_of_every_layer() {
    let layers = vec![layer(2, 32, 16, None), layer(3, 8, 4, Some(5))];
    let config = CacheConfig {
        key_storage: KvStorage::F32,
        value_storage: KvStorage::F16,
        ..CacheConfig::new(10, layers)
    };
    for (index, side, bytes) in [
        (0, Side::Key, 128),
        (0, Side::Value, 32),
        (1, Side::Key, 32),
        (1, Side::Value, 8),
    ] {
        assert_eq!(config.row_bytes(index, side), bytes);
    }
    assert_eq!(config.bytes_for(1), 2 * (128 + 32) + 3 * (32 + 8));
    assert_eq!(config.bytes_for(7), 7 * config.bytes_for(1));
    assert_eq!(config.bytes_for(0), 0);
}

#[test]
fn equal_layers_are_the_same_configuration_as_a_list_of_them() {
    let one = layer(2, 32, 16, Some(3));
    let uniform = CacheConfig::uniform(9, 3, one);
    assert_eq!(uniform, CacheConfig::new(9, vec![one; 3]));
    assert_eq!((uniform.capacity, uniform.layers.len()), (9, 3));
    assert_eq!(uniform.check(), Ok(()));
}

#[test]
fn configurations_at_the_limits_are_accepted_and_those_beyond_are_named() {
    let good = CacheConfig::new(1, vec![layer(1, 1, 1, Some(1))]);
    let with = |change: &dyn Fn(&mut CacheConfig)| {
        let mut config = good.clone();
        change(&mut config);
        config.check().map_err(|error| error.to_string())
    };
    let ring = |max_step, max_rewind| {
        Some(RingPolicy {
            max_step,
            max_rewind,
        })
    };
    let accepted: [&dyn Fn(&mut CacheConfig); 7] = [
        &|_| (),
        &|c| c.layers.push(LayerConfig::state(2, 6)),
        &|c| c.capacity = MAX,
        &|c| c.layers = vec![c.layers[0]; u16::MAX.into()],
        &|c| c.layers[0].window = Some(MAX),
        &|c| c.ring = ring(MAX, 0),
        // Only layers with a window have rings.
        &|c| (c.layers[0].window, c.ring) = (None, ring(MAX + 1, 0)),
    ];
    for (case, change) in accepted.iter().enumerate() {
        assert_eq!(with(change), Ok(()), "case {case}");
    }
    type Damage<'a> = &'a dyn Fn(&mut CacheConfig);
    let refused: [(Damage<'_>, &str); 10] = [
        (&|c| c.capacity = 0, "a capacity of 0 cells"),
        (&|c| c.capacity = MAX + 1, "a capacity of 2147483648 cells"),
        (&|c| c.layers = vec![c.layers[0]; 65536], "65536 layers"),
        (
            &|c| c.layers[0].kv_heads = 0,
            "layer 0 has 0 heads, keys of 1 and values of 1",
        ),
        (
            &|c| c.layers.push(layer(1, 0, 1, Some(4))),
            "layer 1 has a state and a window",
        ),
        (
            &|c| (c.layers, c.states.slots) = (vec![LayerConfig::state(1, 4)], 1),
            "1 states, must be at least 2",
        ),
        (
            &|c| c.layers[0].value_dim = 0,
            "layer 0 has 1 heads, keys of 1 and values of 0",
        ),
        (
            &|c| c.layers[0].window = Some(0),
            "layer 0 has a window of 0",
        ),
        (
            &|c| c.layers[0].window = Some(MAX + 1),
            "layer 0 has a window of 2147483648 and 0 rows more",
        ),
        (
            &|c| c.ring = ring(0, MAX + 1),
            "layer 0 has a window of 1 and 2147483648 rows more",
        ),
    ];
    for (change, reason) in refused {
        let error = with(change).unwrap_err();
        assert!(error.ends_with(reason), "{error:?} instead of {reason:?}");
    }
}

proptest! {
    /// A ring is large enough if, after any step or rewind that the policy allows, the window of the next token has
    /// not been overwritten; it is as small as possible if one slot fewer is not enough.
    #[test]
    fn a_ring_has_as_many_slots_as_its_longest_step_or_rewind_needs(
        window in 1u32..20,
        max_step in 0u32..20,
        max_rewind in 0u32..20,
    ) {
        let policy = RingPolicy { max_step, max_rewind };
        let slots = policy.slots(window);
        let enough = |slots: u32| {
            // The first of `tokens` queries sees `window - 1` earlier rows while all its step's rows are written.
            let step = (0..=max_step.max(1)).all(|tokens| window - 1 + tokens <= slots);
            // After `tokens` were written and rewound, the rows seen before them must be there.
            let rewind = (0..=max_rewind).all(|tokens| window - 1 + tokens <= slots);
            step && rewind
        };
        prop_assert!(enough(slots) && !enough(slots - 1));
        prop_assert_eq!(policy.slots(0), policy.slots(1), "a token always sees itself");
    }
}
