"""Trains an Eagle3 head for a GGUF model of the llama architecture, from the model's own answers.

    python3 train.py MODEL.gguf OUT --seconds 440

Generates answers to the prompts of prompts.py with the target itself, trains the head on them, evaluates it on held-out
prompts by position, and writes OUT/eagle3.gguf and OUT/report.json. `--smoke` runs every part on a random tiny model.
"""

import argparse
import json
import random
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import gguf_file
import prompts
from model import Head, Target, permute

STEPS = 7
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
BEGUN = time.time()


def log(text):
    print(f"[{time.time() - BEGUN:6.1f} s] {text}", flush=True)


class ChatTokenizer:
    """The byte-level BPE of the file, and the chat template of SmolLM2."""

    def __init__(self, file):
        from tokenizers import Tokenizer, models, pre_tokenizers

        tokens = file.metadata["tokenizer.ggml.tokens"]
        merges = [tuple(merge.split(" ")) for merge in file.metadata["tokenizer.ggml.merges"]]
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.bpe = Tokenizer(models.BPE(vocab=self.ids, merges=merges))
        self.bpe.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        self.start, self.end = self.ids["<|im_start|>"], self.ids["<|im_end|>"]

    def text(self, text):
        return self.bpe.encode(text, add_special_tokens=False).ids

    def chat(self, message):
        ids = [self.start, *self.text(f"system\n{SYSTEM}"), self.end, *self.text("\n")]
        ids += [self.start, *self.text(f"user\n{message}"), self.end, *self.text("\n")]
        return ids + [self.start, *self.text("assistant\n")]


class TinyFile:
    """A random model of the same layout, to run every part in seconds."""

    def __init__(self):
        rng = np.random.default_rng(1)
        self.metadata = {
            "llama.block_count": 8, "llama.attention.head_count": 3, "llama.attention.head_count_kv": 1,
            "llama.embedding_length": 96, "llama.feed_forward_length": 128,
            "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 10000.0,
            "llama.context_length": 512,
        }  # fmt: skip
        shapes = {"token_embd.weight": (300, 96), "output_norm.weight": (96,)}
        for i in range(8):
            p = f"blk.{i}."
            shapes |= {p + "attn_norm.weight": (96,), p + "attn_q.weight": (96, 96), p + "attn_k.weight": (32, 96),
                       p + "attn_v.weight": (32, 96), p + "attn_output.weight": (96, 96), p + "ffn_norm.weight": (96,),
                       p + "ffn_gate.weight": (128, 96), p + "ffn_up.weight": (128, 96), p + "ffn_down.weight": (96, 128)}  # fmt: skip
        self.tensors = shapes
        self.values = {n: (rng.standard_normal(s) * 0.3).astype(np.float32) for n, s in shapes.items()}

    def tensor(self, name):
        return self.values[name]


def generate(target, pairs, batch, new_tokens, stop, until):
    """Answers to (prompt ids, temperature): (prompt ids, answer ids)."""
    pairs = sorted(pairs, key=lambda pair: len(pair[0]))
    chunks = [pairs[i : i + batch] for i in range(0, len(pairs), batch)]
    random.Random(5).shuffle(chunks)
    answers = []
    for chunk in chunks:
        if time.time() > until:
            break
        new = target.generate([p for p, _ in chunk], new_tokens, [t for _, t in chunk], stop)
        answers += [(prompt, answer) for (prompt, _), answer in zip(chunk, new) if len(answer) > 4]
        log(f"{len(answers)} answers, {sum(len(a) for _, a in answers)} tokens")
    return answers


def batches(answers, tokens_per_batch, rng, longest):
    """Padded batches of sequences of similar length: ids, the first answer position, and the length of each."""
    order = sorted(range(len(answers)), key=lambda i: len(answers[i][0]) + len(answers[i][1]) + rng.random() * 24)
    groups, group = [], []
    for i in order:
        size = min(longest, len(answers[i][0]) + len(answers[i][1]))
        if group and size * (len(group) + 1) > tokens_per_batch:
            groups.append(group)
            group = []
        group.append(i)
    groups.append(group)
    rng.shuffle(groups)
    for group in groups:
        rows = [(answers[i][0] + answers[i][1])[:longest] for i in group]
        ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
        for row, sequence in enumerate(rows):
            ids[row, : len(sequence)] = torch.tensor(sequence)
        yield ids, torch.tensor([len(answers[i][0]) for i in group]), torch.tensor([len(row) for row in rows])


@torch.no_grad()
def targets(target, ids, lengths):
    """Features and last hidden states of the target over whole sequences."""
    time_steps = ids.shape[1]
    positions = torch.arange(time_steps, device=ids.device)[None].expand(ids.shape[0], -1)
    valid = positions < lengths[:, None]
    causal = torch.ones(time_steps, time_steps, dtype=torch.bool, device=ids.device).tril()
    mask = causal[None] & valid[:, None]
    mask = mask | torch.eye(time_steps, dtype=torch.bool, device=ids.device)[None]
    hidden, features = target.forward(ids, positions, mask[:, None], taps=target.tap_layers())
    return hidden, features, valid


def unroll(target, head, ids, starts, lengths, steps):
    """The head's logits of each step at t, the target's hidden state at t + 1, and where t + 2 is in the answer."""
    hidden, features, valid = targets(target, ids, lengths)
    embedded = target.embedding[ids[:, 1:]].float()
    with torch.autocast(ids.device.type, dtype=torch.bfloat16):
        logits = head(embedded, features[:, :-1].float(), steps, valid[:, :-1])
    at = torch.arange(ids.shape[1] - 1, device=ids.device)[None]
    counted = (at + 2 >= starts[:, None]) & (at + 2 < lengths[:, None])
    return logits, hidden[:, 1:], counted


def train(target, answers, d2t, seconds, device, tokens_per_batch, lr):
    head = Head(target, len(d2t)).to(device)
    with torch.no_grad():
        head.lm_head.weight.copy_(target.output[d2t].float())
        head.norm.copy_(target.norm.float())
    optimiser = torch.optim.AdamW(head.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.01)
    draft_output = target.output[d2t]
    rng = random.Random(7)
    begun, steps, losses = time.time(), 0, []
    while True:
        for ids, starts, lengths in batches(answers, tokens_per_batch, rng, 512):
            done = (time.time() - begun) / seconds
            if done >= 1:
                return head.eval(), steps
            ids, starts, lengths = ids.to(device), starts.to(device), lengths.to(device)
            rate = min(1, (steps + 1) / 60) * (0.02 + 0.98 * 0.5 * (1 + np.cos(np.pi * done)))
            for group in optimiser.param_groups:
                group["lr"] = lr * rate
            logits, hidden, counted = unroll(target, head, ids, starts, lengths, STEPS)
            wanted = (hidden[counted] @ draft_output.T).float().softmax(-1)
            loss = 0
            for i, row in enumerate(logits):
                loss = loss + 0.8**i * -(wanted * F.log_softmax(row[counted].float(), -1)).sum(-1).mean()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(head.parameters(), 0.5)
            optimiser.step()
            steps += 1
            if steps % 50 == 0:
                losses.append(loss.item())
                log(f"step {steps}, loss {loss.item():.3f}, {100 * done:.0f} %")


@torch.no_grad()
def evaluate(target, head, answers, d2t, device):
    """By position, over all places of the answers: how often the head's choice is the target's, if those before were."""
    hits, top3, tries, length, places = np.zeros(STEPS), np.zeros(STEPS), np.zeros(STEPS), 0.0, 0
    for ids, starts, lengths in batches(answers, 8192, random.Random(1), 512):
        ids, starts, lengths = ids.to(device), starts.to(device), lengths.to(device)
        logits, hidden, counted = unroll(target, head, ids, starts, lengths, STEPS)
        best = (hidden @ target.output.T).argmax(-1)
        # A chain that begins at t has its choice of step i at t + i.
        alive = counted.clone()
        for i, row in enumerate(logits):
            chosen = d2t[row.argmax(-1)] == best
            three = (d2t[row.float().topk(3, -1).indices] == best[..., None]).any(-1)
            here = counted & (torch.roll(alive, 1, 1) if i else alive)
            if i:
                here[:, 0] = False
            tries[i] += here.sum().item()
            hits[i] += (here & chosen).sum().item()
            top3[i] += (here & three).sum().item()
            alive = here & chosen
            length += alive.sum().item()
        places += counted.sum().item()
    per = lambda n: [round(float(x), 4) for x in n / np.maximum(tries, 1)]
    return {"accepted_given_before": per(hits), "in_top_3": per(top3), "mean_accepted_length": round(1 + length / places, 3), "places": places}


def export(path, target, file, head, d2t):
    """Writes the head as GGUF of the architecture eagle3."""
    t = lambda p: p.detach().float().cpu().numpy()
    meta = [
        ("general.architecture", 8, "eagle3"),
        ("general.name", 8, "Eagle3 head for SmolLM2-135M-Instruct"),
        ("eagle3.block_count", 4, 1),
        ("eagle3.context_length", 4, int(file.metadata["llama.context_length"])),
        ("eagle3.embedding_length", 4, target.hidden),
        ("eagle3.feed_forward_length", 4, target.mlp),
        ("eagle3.attention.head_count", 4, target.heads),
        ("eagle3.attention.head_count_kv", 4, target.kv_heads),
        ("eagle3.attention.layer_norm_rms_epsilon", 6, target.eps),
        ("eagle3.rope.freq_base", 6, target.theta),
        ("eagle3.target_layers", 4, target.tap_layers()),
        ("eagle3.target_hidden_size", 4, target.hidden),
        ("eagle3.target_vocab_size", 4, int(target.embedding.shape[0])),
        ("eagle3.norm_before_residual", 7, False),
        ("eagle3.norm_before_fc", 7, False),
    ]
    q8, f32 = gguf_file.Q8_0, gguf_file.F32
    tensors = [
        ("fc.weight", q8, t(head.fc.weight)),
        ("d2t", gguf_file.I32, d2t.cpu().numpy()),
        ("blk.0.attn_norm.weight", f32, t(head.input_norm)),
        ("blk.0.attn_norm_2.weight", f32, t(head.hidden_norm)),
        ("blk.0.attn_q.weight", q8, permute(t(head.q.weight), target.heads)),
        ("blk.0.attn_k.weight", q8, permute(t(head.k.weight), target.kv_heads)),
        ("blk.0.attn_v.weight", q8, t(head.v.weight)),
        ("blk.0.attn_output.weight", q8, t(head.o.weight)),
        ("blk.0.ffn_norm.weight", f32, t(head.ffn_norm)),
        ("blk.0.ffn_gate.weight", q8, t(head.gate.weight)),
        ("blk.0.ffn_up.weight", q8, t(head.up.weight)),
        ("blk.0.ffn_down.weight", q8, t(head.down.weight)),
        ("output_norm.weight", f32, t(head.norm)),
        ("output.weight", q8, t(head.lm_head.weight)),
    ]
    gguf_file.write(path, meta, tensors)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=440, help="time for everything")
    parser.add_argument("--prompts", type=int, default=16000)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(3)
    rng = random.Random(3)
    args.out.mkdir(parents=True, exist_ok=True)
    end = BEGUN + args.seconds
    if args.smoke:
        file, stop, batch, new_tokens, args.vocab = TinyFile(), 2, 16, 24, 64
        ids = lambda n: [[rng.randrange(3, 300) for _ in range(rng.randint(5, 12))] for _ in range(n)]
        training, held = [(p, rng.choice([0.0, 1.0])) for p in ids(64)], [(p, 0.0) for p in ids(16)]
        kinds = ["chat"] * 16
    else:
        file = gguf_file.Reader(args.model)
        tokenizer = ChatTokenizer(file)
        stop, batch, new_tokens = tokenizer.end, 1536, 320
        training, held = prompts.build(args.prompts, 11)
        log(f"{len(training)} prompts to train on, {len(held)} held out; the first: {training[0]}: {tokenizer.chat(training[0][1])}")
        # Code prompts are few: they are answered several times.
        training += [pair for pair in training if pair[0] == "code"] * 2
        training = [(tokenizer.chat(p), rng.choice([0.0, 0.0, 0.0, 0.7, 1.0])) for _, p in training]
        held = held[:768]
        kinds = [kind for kind, _ in held]
        held = [(tokenizer.chat(p), 0.0) for _, p in held]
    target = Target(file, device)
    log("the target is loaded")
    held_answers = target.generate([p for p, _ in held], new_tokens, [0.0] * len(held), stop)
    held_answers = [(p, a, k) for (p, _), a, k in zip(held, held_answers, kinds) if len(a) > 4]
    log(f"{len(held_answers)} held-out answers")
    answers = generate(target, training, batch, new_tokens, stop, BEGUN + 0.34 * args.seconds)
    counts = torch.bincount(torch.tensor([x for _, a in answers for x in a]), minlength=target.embedding.shape[0])
    d2t = counts.topk(args.vocab).indices.sort().values.to(device)
    covered = counts[d2t.cpu()].sum().item() / counts.sum().item()
    log(f"{args.vocab} tokens cover {100 * covered:.2f} % of the answers")
    spare = 45 if not args.smoke else 2
    seconds = max(5, end - time.time() - spare)
    head, steps = train(target, answers, d2t, seconds, device, 12288 if not args.smoke else 512, args.lr)
    export(args.out / "eagle3.gguf", target, file, head, d2t)
    log("exported")
    report = {
        "steps": steps,
        "training_answers": len(answers),
        "training_tokens": int(counts.sum()),
        "vocabulary_coverage": covered,
        "by_kind": {},
    }
    report["all"] = evaluate(target, head, [(p, a) for p, a, _ in held_answers], d2t, device)
    for kind in sorted(set(k for _, _, k in held_answers)):
        report["by_kind"][kind] = evaluate(target, head, [(p, a) for p, a, k in held_answers if k == kind], d2t, device)
    (args.out / "report.json").write_text(json.dumps(report, indent=1))
    log(json.dumps(report))


if __name__ == "__main__":
    main()
