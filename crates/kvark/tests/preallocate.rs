//! A cache that is allocated at once has the planned size from the start, never grows, and gives the same logits.

use kvark::backend::Cpu;
use kvark::cache::KvStorage;
use kvark::{Model, Runner, RunnerOptions};
use std::path::Path;

#[test]
fn a_preallocated_cache_never_grows() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/decoder");
    // Full layers, and layers with a ring.
    for name in ["llama_plain.gguf", "mistral.gguf", "gemma3.gguf"] {
        let model = Model::open(&fixtures.join(name), Some(600)).unwrap();
        let cpu = Cpu::new().unwrap();
        for storage in KvStorage::ALL {
            let options = |preallocate| RunnerOptions {
                context: Some(600),
                max_step_tokens: 16,
                key_storage: storage,
                value_storage: storage,
                preallocate,
                ..RunnerOptions::default()
            };
            let mut grown = Runner::new(&model, &cpu, &options(false)).unwrap();
            let mut whole = Runner::new(&model, &cpu, &options(true)).unwrap();
            let all = whole.memory().unwrap().kv;
            assert!(all > 0 && grown.memory().unwrap().kv == 0);
            let ids: Vec<u32> = (0..300).map(|i| i * 7 % 60).collect();
            for chunk in ids.chunks(37) {
                grown.feed(chunk, |_| true).unwrap();
                whole.feed(chunk, |_| true).unwrap();
                assert_eq!(grown.logits(), whole.logits(), "{name} {storage}");
                assert_eq!(whole.memory().unwrap().kv, all, "{name} {storage}");
            }
            whole.rewind(290).unwrap();
            grown.rewind(290).unwrap();
            whole.feed(&[3], |_| true).unwrap();
            grown.feed(&[3], |_| true).unwrap();
            assert_eq!(grown.logits(), whole.logits(), "{name} {storage}");
            let more: Vec<u32> = (0..300).map(|i| i * 5 % 60).collect();
            grown.feed(&more, |_| true).unwrap();
            assert_eq!(grown.memory().unwrap().kv, all, "{name} {storage}");
        }
    }
}
