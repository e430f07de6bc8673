//! The JSON object of a run.

use kvark::generate::{GenerateOutput, Timings, TokenLogprobs};
use kvark::memory::MemoryUsage;
use serde_json::{Value, json};
use std::time::Duration;

/// The object of one continuation.
pub(super) fn report(prompt: &[u32], generated: &GenerateOutput, memory: MemoryUsage) -> Value {
    let mut object = json!({
        "prompt_tokens": prompt,
        "tokens": generated.tokens,
        "text": generated.text,
        "finish_reason": generated.finish.name(),
        "timings": timings(&generated.timings),
        "memory": {
            "weights_bytes": memory.weights,
            "kv_bytes": memory.kv,
            "arena_bytes": memory.arena,
            "packed_bytes": memory.packed,
        },
    });
    if !generated.logprobs.is_empty() {
        object["logprobs"] = logprobs(generated);
    }
    if let Some(stats) = &generated.speculation {
        object["spec"] = server::spec_object(stats);
    }
    object
}

/// The object of several continuations of one prompt, of which `computed` tokens were computed in `prompt_time`, and their
/// timings together.
pub(super) fn branches_report(
    (prompt, computed, prompt_time): (&[u32], usize, Duration),
    generated: &[GenerateOutput],
    memory: MemoryUsage,
    seed: u64,
) -> (Value, Timings) {
    let all = || generated.iter().map(|g| &g.timings);
    let measures = Timings {
        prompt_tokens: computed,
        prompt_time,
        generated_tokens: all().map(|t| t.generated_tokens).sum(),
        decode_time: all().map(|t| t.decode_time).max().unwrap_or_default(),
        decoded_tokens: all().map(|t| t.decoded_tokens).sum(),
        ..Timings::default()
    };
    let branch = |(id, g): (u64, &GenerateOutput)| {
        let mut object = json!({
            "seed": seed.wrapping_add(id),
            "tokens": g.tokens,
            "text": g.text,
            "finish_reason": g.finish.name(),
        });
        if !g.logprobs.is_empty() {
            object["logprobs"] = logprobs(g);
        }
        object
    };
    let mut object = report(prompt, &generated[0], memory);
    object["seed"] = seed.into();
    object["branches"] = (0..).zip(generated).map(branch).collect();
    object["timings"] = timings(&measures);
    (object, measures)
}

fn logprobs(generated: &GenerateOutput) -> Value {
    let token = |(id, found): (&u32, &TokenLogprobs)| json!({ "token": id, "logprob": found.logprob, "top": found.top });
    let tokens = generated.tokens.iter().zip(&generated.logprobs);
    tokens.map(token).collect()
}

fn timings(t: &Timings) -> Value {
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    json!({
        "prompt_n": t.prompt_tokens,
        "prompt_ms": ms(t.prompt_time),
        "prompt_per_second": t.prompt_rate(),
        "predicted_n": t.generated_tokens,
        "predicted_ms": ms(t.decode_time),
        "predicted_per_second": t.decode_rate(),
    })
}
