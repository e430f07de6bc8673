"""What transformers gives for the students in single precision: expected.json, which tests compare with.

    python3 truth.py smollm2-hybrid-14m.gguf smollm2-experts-14m.gguf     # needs torch and transformers
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers as hf

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "eagle3"))
import gguf_file
from data import ChatTokenizer
from distil import PROMPTS

# Tokens of a greedy answer, and of the text whose log-probabilities are compared.
ANSWER = 64
SCORED = 400


def common(meta):
    return dict(
        vocab_size=meta["vocab_size"], hidden_size=meta["embedding_length"], num_hidden_layers=meta["block_count"],
        intermediate_size=meta["feed_forward_length"], num_attention_heads=meta["attention.head_count"],
        num_key_value_heads=meta["attention.head_count_kv"], head_dim=meta["attention.key_length"],
        rms_norm_eps=meta["attention.layer_norm_rms_epsilon"], max_position_embeddings=meta["context_length"],
        tie_word_embeddings=True, attn_implementation="eager",
    )  # fmt: skip


NAMES = {
    "attn_norm.weight": "input_layernorm.weight", "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight", "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight", "ffn_down.weight": "mlp.down_proj.weight",
    "attn_q.weight": "self_attn.q_proj.weight", "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight", "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight", "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_qkv.weight": "linear_attn.in_proj_qkv.weight", "attn_gate.weight": "linear_attn.in_proj_z.weight",
    "ssm_alpha.weight": "linear_attn.in_proj_a.weight", "ssm_beta.weight": "linear_attn.in_proj_b.weight",
    "ssm_conv1d.weight": "linear_attn.conv1d.weight", "ssm_dt.bias": "linear_attn.dt_bias", "ssm_a": "linear_attn.A_log",
    "ssm_norm.weight": "linear_attn.norm.weight", "ssm_out.weight": "linear_attn.out_proj.weight",
    "ffn_gate_inp.weight": "mlp.gate.weight", "ffn_down_exps.weight": "mlp.experts.down_proj",
}  # fmt: skip


def load(file):
    """The model of transformers with the weights of a file."""
    arch = file.metadata["general.architecture"]
    meta = {key.split(".", 1)[1]: value for key, value in file.metadata.items() if key.startswith(arch + ".")}
    rope = {"rope_type": "default", "rope_theta": meta["rope.freq_base"]}
    if arch == "qwen35":
        kinds = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(meta["block_count"])]
        heads, dim = meta["ssm.group_count"], meta["ssm.state_size"]
        model = hf.Qwen3_5ForCausalLM(hf.Qwen3_5TextConfig(
            **common(meta), layer_types=kinds, linear_num_key_heads=heads, linear_num_value_heads=heads,
            linear_key_head_dim=dim, linear_value_head_dim=dim, linear_conv_kernel_dim=meta["ssm.conv_kernel"],
            rope_parameters=rope | {"partial_rotary_factor": 0.25, "mrope_section": meta["rope.dimension_sections"][:3]}))
    else:
        model = hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(
            **common(meta), num_experts=meta["expert_count"], num_experts_per_tok=meta["expert_used_count"],
            moe_intermediate_size=meta["expert_feed_forward_length"], norm_topk_prob=True, decoder_sparse_step=1,
            mlp_only_layers=[], rope_parameters=rope))
    state = {"model.embed_tokens.weight": file.tensor("token_embd.weight"), "model.norm.weight": file.tensor("output_norm.weight")}
    for name in file.tensors:
        if not name.startswith("blk."):
            continue
        _, layer, short = name.split(".", 2)
        prefix = f"model.layers.{layer}."
        w = file.tensor(name)
        if short == "ffn_gate_exps.weight":
            state[prefix + "mlp.experts.gate_up_proj"] = np.concatenate([w, file.tensor(name.replace("gate", "up"))], 1)
        elif short != "ffn_up_exps.weight":
            state[prefix + NAMES[short]] = w
    for key, w in state.items():
        if key.endswith("A_log"):
            state[key] = np.log(-w)
        elif key.endswith("conv1d.weight"):
            state[key] = w[:, None]
        elif arch == "qwen35" and key.endswith("norm.weight") and "linear_attn" not in key:
            state[key] = w - 1
    state = {key: torch.from_numpy(np.ascontiguousarray(w)) for key, w in state.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model.float().eval()


@torch.no_grad()
def greedy(model, ids, end):
    """Greedy tokens, and for each by how much its logit is above the second."""
    ids, margins = list(ids), []
    for _ in range(ANSWER):
        two = model(torch.tensor([ids]), use_cache=False).logits[0, -1].topk(2)
        ids.append(int(two.indices[0]))
        margins.append(round(float(two.values[0] - two.values[1]), 4))
        if ids[-1] == end:
            break
    return ids[-len(margins) :], margins


def main():
    expected = {}
    text = (HERE.parent.parent / "xtask/peers/prose.txt").read_text()
    for path in map(Path, sys.argv[1:]):
        file = gguf_file.Reader(path)
        tokenizer, model = ChatTokenizer(file), load(file)
        answers = []
        for prompt in PROMPTS:
            ids = tokenizer.chat(prompt)
            tokens, margins = greedy(model, ids, tokenizer.end)
            print(path.name, repr(tokenizer.decode(tokens)), min(margins))
            answers.append({"prompt": ids, "tokens": tokens, "margins": margins})
        ids = tokenizer.text(text)[:SCORED]
        with torch.no_grad():
            log_p = model(torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)
        scored = [round(float(log_p[i, token]), 5) for i, token in enumerate(ids[1:])]
        expected[path.name] = {"answers": answers, "text": ids, "logprobs": scored}
        print(path.name, "perplexity", float(np.exp(-np.mean(scored))))
    (HERE / "expected.json").write_text(json.dumps(expected, separators=(",", ":")).replace('},"smollm2', '},\n"smollm2') + "\n")


if __name__ == "__main__":
    main()
