use super::*;
use proptest::prelude::*;

fn schema(entries: &[(&str, i64)]) -> Metadata {
    let entry =
        |&(key, number): &(&str, i64)| (format!("kv_cache.{key}"), MetadataValue::Int(number));
    entries.iter().map(entry).collect()
}

fn smollm() -> Metadata {
    schema(&[
        ("schema_version", 1),
        ("n_layers", 30),
        ("n_kv_heads", 3),
        ("head_dim", 64),
    ])
}

/// Two flat caches and a windowed one.
fn methods() -> Metadata {
    let ints = |numbers: [i64; 3]| MetadataValue::Ints(numbers.to_vec());
    Metadata::from([
        (N_CACHES.to_owned(), MetadataValue::Int(3)),
        (KV_HEADS.to_owned(), ints([1, 1, 2])),
        (HEAD_DIMS.to_owned(), ints([256, 256, 128])),
        (WINDOWS.to_owned(), ints([0, 0, 512])),
        (PREFILL_CHUNK.to_owned(), MetadataValue::Int(128)),
        (MAX_CONTEXT.to_owned(), MetadataValue::Int(32768)),
    ])
}

fn with(mut file: Metadata, key: &str, value: MetadataValue) -> Metadata {
    file.insert(key.to_owned(), value);
    file
}

fn without(mut file: Metadata, key: &str) -> Metadata {
    file.remove(key);
    file
}

fn layer(kv_heads: usize, dim: usize, window: Option<u32>) -> LayerConfig {
    LayerConfig {
        kv_heads,
        key_dim: dim,
        value_dim: dim,
        window,
        sinks: 0,
    }
}

#[test]
fn both_forms_are_read() {
    let facts = read(&smollm()).unwrap().unwrap();
    assert_eq!(facts.layers, vec![layer(3, 64, None); 30]);
    assert_eq!((facts.prefill_chunk, facts.max_context), (None, None));
    let facts = read(&methods()).unwrap().unwrap();
    assert_eq!(
        facts.layers,
        [
            layer(1, 256, None),
            layer(1, 256, None),
            layer(2, 128, Some(512))
        ]
    );
    assert_eq!(facts.prefill_chunk, Some(128));
    assert_eq!(facts.max_context, Some(32768));
    let other = with(Metadata::new(), MAX_CONTEXT, MetadataValue::Int(2048));
    assert_eq!(read(&other).unwrap(), None, "no facts about caches");
}

#[test]
fn what_is_wrong_is_named() {
    let int = MetadataValue::Int;
    let cases = [
        (
            without(smollm(), VERSION),
            "\"kv_cache.schema_version\" is missing",
        ),
        (
            with(smollm(), VERSION, int(2)),
            "\"kv_cache.schema_version\" is 2, and only version 1 is understood",
        ),
        (
            with(smollm(), VERSION, MetadataValue::Ints(vec![1])),
            "\"kv_cache.schema_version\" is a list and not a number",
        ),
        (
            without(smollm(), HEAD_DIM),
            "\"kv_cache.head_dim\" is missing",
        ),
        (
            with(smollm(), N_KV_HEADS, int(0)),
            "\"kv_cache.n_kv_heads\" has 0, which is not between 1 and 65535",
        ),
        (
            with(smollm(), N_LAYERS, int(i64::MAX)),
            "\"kv_cache.n_layers\" has 9223372036854775807, which is not between 1 and 65535",
        ),
        (without(methods(), N_CACHES), "\"get_n_caches\" is missing"),
        (without(methods(), WINDOWS), "\"get_windows\" is missing"),
        (
            with(methods(), N_CACHES, int(4)),
            "\"get_kv_heads\" has 3 entries, but get_n_caches is 4",
        ),
        (
            with(methods(), HEAD_DIMS, int(64)),
            "\"get_head_dims\" is a number and not a list",
        ),
        (
            with(methods(), WINDOWS, MetadataValue::Ints(vec![0, -1, 4])),
            "\"get_windows\" has -1, which is not between 0 and 2147483647",
        ),
        (
            with(methods(), MAX_CONTEXT, int(0)),
            "\"get_max_ctx_len\" has 0, which is not between 1 and 2147483647",
        ),
    ];
    for (file, message) in cases {
        let error = read(&file).unwrap_err().to_string();
        assert_eq!(error, format!("the model's metadata is wrong: {message}"));
    }
}

#[test]
fn forms_that_disagree_are_refused() {
    let facts = read(&smollm()).unwrap().unwrap();
    let mut both = Metadata::new();
    write(&facts, &mut both).unwrap();
    assert!(both.contains_key(N_LAYERS) && both.contains_key(N_CACHES));
    assert_eq!(read(&both).unwrap(), Some(facts));
    let mut heads = vec![3; 30];
    heads[7] = 9;
    for (key, value, message) in [
        (
            N_LAYERS,
            MetadataValue::Int(29),
            "\"get_n_caches\" is 30, but kv_cache.n_layers is 29",
        ),
        (
            KV_HEADS,
            MetadataValue::Ints(heads),
            "\"get_kv_heads\" has 9 for cache 7, but kv_cache.n_kv_heads is 3",
        ),
        (
            HEAD_DIM,
            MetadataValue::Int(32),
            "\"get_head_dims\" has 64 for cache 0, but kv_cache.head_dim is 32",
        ),
    ] {
        let error = read(&with(both.clone(), key, value)).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("the model's metadata is wrong: {message}")
        );
    }
}

#[test]
fn a_writer_refuses_what_no_reader_could_say() {
    let facts = |layers: Vec<LayerConfig>| CacheFacts {
        layers,
        prefill_chunk: None,
        max_context: None,
    };
    let mut wide = layer(2, 64, None);
    wide.value_dim = 128;
    for layers in [
        vec![],
        vec![wide],
        vec![layer(0, 64, None)],
        vec![layer(2, 64, Some(0))],
    ] {
        let mut file = Metadata::new();
        assert!(write(&facts(layers), &mut file).is_err());
        assert!(file.is_empty(), "a refused write leaves nothing behind");
    }
    // A reader of the versioned keys alone would take a windowed layer for a flat one: they are left out.
    // Those of an earlier write go, and keys of others stay.
    let mut file = with(smollm(), "other", MetadataValue::Int(7));
    let windowed = facts(vec![layer(2, 64, Some(8))]);
    write(&windowed, &mut file).unwrap();
    assert!(!file.contains_key(VERSION) && file.contains_key("other"));
    assert_eq!(read(&file).unwrap(), Some(windowed));
}

#[test]
fn a_config_joins_facts_and_policy() {
    let facts = read(&methods()).unwrap().unwrap();
    let policy = CachePolicy {
        key_storage: KvStorage::F32,
        initial_cells: 16,
        ring: Some(RingPolicy {
            max_step: 128,
            max_rewind: 8,
        }),
        ..CachePolicy::new(4096)
    };
    let config = make_config(&facts, &policy);
    assert_eq!(config.layers, facts.layers);
    assert_eq!((config.capacity, config.initial_cells), (4096, 16));
    assert_eq!(config.key_storage, KvStorage::F32);
    assert_eq!(config.value_storage, KvStorage::default());
    assert_eq!(config.ring, policy.ring);
    config.check().unwrap();
}

fn layers() -> impl Strategy<Value = Vec<LayerConfig>> {
    let one = (1usize..9, 1usize..300, prop::option::of(1u32..5000))
        .prop_map(|(heads, dim, window)| layer(heads, dim, window));
    let alike = (1usize..9, 1usize..300, 1usize..40)
        .prop_map(|(heads, dim, n)| vec![layer(heads, dim, None); n]);
    prop_oneof![prop::collection::vec(one, 1..40), alike]
}

proptest! {
    #[test]
    fn facts_survive_writing_and_reading(
        layers in layers(),
        prefill_chunk in prop::option::of(1u32..5000),
        max_context in prop::option::of(1u32..=i32::MAX as u32),
    ) {
        let facts = CacheFacts { layers, prefill_chunk, max_context };
        let mut file = Metadata::new();
        write(&facts, &mut file).unwrap();
        prop_assert_eq!(read(&file).unwrap(), Some(facts.clone()));
        // Each form also stands alone.
        if let Ok(params) = ModelCacheParams::of(&facts) {
            let mut schema = Metadata::new();
            params.write(&mut schema);
            prop_assert_eq!(read(&schema).unwrap().unwrap().layers, facts.layers.clone());
            file.retain(|key, _| !schema.contains_key(key));
            prop_assert_eq!(read(&file).unwrap(), Some(facts));
        }
    }

    #[test]
    fn no_numbers_make_the_reader_panic(
        file in prop::collection::btree_map(
            prop::sample::select(&CACHE_KEYS[..]),
            prop_oneof![
                prop::sample::select(vec![0, 1, 2, -1, i64::MAX, i64::MIN]).prop_map(MetadataValue::Int),
                prop::collection::vec(0i64..4, 0..3).prop_map(MetadataValue::Ints),
            ],
            0..10,
        ),
    ) {
        let file = file.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        if let Ok(Some(facts)) = read(&file) {
            prop_assert!(make_config(&facts, &CachePolicy::new(8)).check().is_ok());
        }
    }
}
