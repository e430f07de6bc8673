"""Trains an Eagle3 head for a GGUF model of the llama architecture, from the model's own answers.

    python3 train.py MODEL.gguf OUT --seconds 700

Lets the target invent and answer prompts (data.py), trains the head on the answers, evaluates it on held-out prompts by
depth, and writes OUT/eagle3.gguf and OUT/report.json. `--random tiny` runs every part on a random tiny model, `--random full`
on one of the size of SmolLM2-135M.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

import data
import gguf_file
import prompts
from data import BEGUN, ChatTokenizer, RandomFile, Texts, log
from model import Head, Target, decoder_layer, full_logits, permute

STEPS = 7


class Batches:
    """Batches of about as many tokens, of texts up to each of the widths, in random order."""

    def __init__(self, texts, widths, tokens, device):
        self.generator = torch.Generator().manual_seed(7)
        self.texts, self.tokens, self.device = texts, tokens, device
        lengths = texts.lengths.cpu()
        lows = [0, *widths[:-1]]
        self.buckets = [(width, ((lengths > low) & (lengths <= width)).nonzero()[:, 0]) for low, width in zip(lows, widths)]

    def __iter__(self):
        while True:
            plan = []
            for width, rows in self.buckets:
                rows = rows[torch.randperm(len(rows), generator=self.generator)]
                size = self.tokens // width
                plan += [(width, chunk) for chunk in rows.split(size) if len(chunk) == size]
            if not plan:
                raise ValueError("there are too few texts for one batch")
            for i in torch.randperm(len(plan), generator=self.generator).tolist():
                width, rows = plan[i]
                rows = rows.to(self.device)
                yield self.texts.ids[rows, :width].long(), self.texts.starts[rows], self.texts.lengths[rows]


def counted_places(width, starts, lengths):
    """Places t where the token at t + 2, which the head guesses at t, is in the answer."""
    at = torch.arange(width - 1, device=starts.device)[None]
    return (at + 2 >= starts[:, None]) & (at + 2 < lengths[:, None])


def inputs(target, ids):
    hidden, features = target.features(ids)
    return target.embedding[ids[:, 1:]], features[:, :-1], hidden[:, 1:]


class Trainer:
    """The head, its optimiser, and the compiled loss."""

    def __init__(self, target, d2t, lr, places):
        self.target, self.lr, self.places, self.steps = target, lr, places, 0
        self.head = Head(target, len(d2t)).to(target.device)
        with torch.no_grad():
            self.head.lm_head.weight.copy_(target.output[d2t].float())
            self.head.norm.copy_(target.norm.float())
        self.draft_output = target.output[d2t].contiguous()
        fused = target.device.type == "cuda"
        self.optimiser = torch.optim.AdamW(self.head.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.01, fused=fused)
        if fused:
            self.head.compile()

    def backward(self, ids, starts, lengths):
        embedded, features, hidden = inputs(self.target, ids)
        with torch.no_grad():
            counted = counted_places(ids.shape[1], starts, lengths).flatten()
            # As many places as always, so that every batch of a width has the same shapes.
            order = torch.rand(counted.shape, device=counted.device) + counted
            chosen = order.topk(min(self.places, len(order))).indices
            weight = counted[chosen].float()
            wanted = full_logits(hidden.flatten(0, 1)[chosen], self.draft_output).softmax(-1).to(embedded.dtype)
        loss = self.head.loss(embedded, features, wanted, chosen, weight, STEPS)
        loss.backward()
        return loss

    def run(self, batches, seconds, export):
        """Steps until the time is over; the rate follows the clock: a short rise, then a cosine."""
        begun, exported = time.time(), time.time()
        total = torch.zeros((), device=self.target.device)
        for ids, starts, lengths in batches:
            done = (time.time() - begun) / seconds
            if done >= 1:
                break
            rate = min(1, (self.steps + 1) / 150) * (0.01 + 0.99 * 0.5 * (1 + np.cos(np.pi * done)))
            for group in self.optimiser.param_groups:
                group["lr"] = self.lr * rate
            loss = self.backward(ids, starts, lengths)
            torch.nn.utils.clip_grad_norm_(self.head.parameters(), 0.5)
            self.optimiser.step()
            self.optimiser.zero_grad(set_to_none=True)
            total += loss.detach()
            self.steps += 1
            if self.steps % 100 == 0:
                log(f"step {self.steps}, loss {total.item() / 100:.3f}, {100 * done:.0f} %")
                total.zero_()
                if time.time() - exported > 120:
                    export()
                    exported = time.time()
            elif self.steps % 10 == 0 and ids.is_cuda:
                torch.cuda.synchronize()
        self.head.eval()


@torch.no_grad()
def evaluate(target, head, texts, d2t):
    """What a chain of STEPS gives in rounds over the answers: how often the head's choice, and one of its best three, is the
    target's token if all choices before it were, and the tokens of a round with the target's own."""
    hits, top3, tries, tokens, rounds = np.zeros(STEPS), np.zeros(STEPS), np.zeros(STEPS), 0, 0
    for rows in torch.arange(len(texts), device=target.device).split(32):
        part = texts.select(rows)
        embedded, features, hidden = inputs(target, part.ids.long())
        best = full_logits(hidden.flatten(0, 1), target.output).argmax(-1).view(hidden.shape[:2])
        first, three = [], []
        for out in head.outputs(embedded, features, STEPS):
            ranked = d2t[head.logits(out).topk(3, -1).indices] == best[..., None]
            first.append(ranked[..., 0].cpu().numpy())
            three.append(ranked.any(-1).cpu().numpy())
        for row, (start, length) in enumerate(zip(part.starts.tolist(), part.lengths.tolist())):
            at, last = start - 2, length - 3
            while at <= last:
                accepted = 0
                while accepted < STEPS and at + accepted <= last:
                    tries[accepted] += 1
                    top3[accepted] += three[accepted][row, at + accepted]
                    if not first[accepted][row, at + accepted]:
                        break
                    hits[accepted] += 1
                    accepted += 1
                tokens += min(accepted + 1, last - at + 1)
                rounds += 1
                at += accepted + 1
    per = lambda n: [round(float(x), 4) for x in n / np.maximum(tries, 1)]
    return {"accepted_given_before": per(hits), "in_top_3": per(top3), "mean_accepted_length": round(tokens / max(rounds, 1), 3), "tokens": tokens}


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


def obtain_texts(args, target, file):
    """Texts to train on and held-out ones, from --data if the file is there."""
    if args.data and args.data.exists():
        parts = torch.load(args.data, map_location=target.device)
        return [Texts(*part) for part in parts]
    if args.random:
        made = data.make_random(target, args.slots, args.longest, args.generate_seconds)
    else:
        excluded = prompts.Excluded(args.exclude)
        held_out = (Path(__file__).parent / "held_out.txt").read_text().splitlines()
        sizes = (args.invented, args.templates, args.slots, args.longest, args.generate_seconds)
        made = data.make(target, ChatTokenizer(file), excluded, held_out, *sizes)
    if args.data:
        torch.save([(t.ids, t.starts, t.lengths, t.kinds) for t in made], args.data)
    torch.cuda.empty_cache()
    return made


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=700, help="time for everything")
    parser.add_argument("--generate-seconds", type=float, default=150, help="time for prompts and answers")
    parser.add_argument("--invented", type=int, default=160000, help="messages that are begun")
    parser.add_argument("--templates", type=int, default=24000, help="prompts from templates")
    parser.add_argument("--exclude", nargs="*", default=[], help="files with prompts that must not be trained on")
    parser.add_argument("--data", type=Path, help="file that keeps the texts")
    parser.add_argument("--slots", type=int, default=4096)
    parser.add_argument("--longest", type=int, default=384)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--batch-tokens", type=int, default=24576)
    parser.add_argument("--random", choices=["tiny", "full"], help="a random model, to test")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(3)
    args.out.mkdir(parents=True, exist_ok=True)
    end = BEGUN + args.seconds
    if args.random == "tiny":
        args.slots, args.longest, args.vocab, args.batch_tokens = 16, 96, 64, 384
    file = RandomFile(args.random == "tiny") if args.random else gguf_file.Reader(args.model)
    widths = [args.longest * 2 // 3, args.longest]
    target = Target(file, device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    log("the target is loaded")
    texts, held = obtain_texts(args, target, file)
    counts = texts.counts(target.embedding.shape[0])
    d2t = counts.topk(args.vocab).indices.sort().values
    share = lambda ids, of: of[ids].sum().item() / max(1, of.sum().item())
    covered = share(d2t, held.counts(len(counts)))
    for size in (args.vocab // 2, args.vocab, args.vocab * 3 // 2):
        log(f"{size} tokens cover {100 * share(counts.topk(size).indices, counts):.2f} % of the answers")
    log(f"{len(texts)} texts, {texts.answer_tokens()} tokens of answers, mean length {texts.lengths.float().mean():.0f}; {len(held)} held out")
    batches = Batches(texts, widths, args.batch_tokens, device)
    log(f"texts by width: {[(width, len(rows)) for width, rows in batches.buckets]}")
    if device.type == "cuda":
        target.compile()
    trainer = Trainer(target, d2t, args.lr, args.batch_tokens * 2 // 3)
    for width, rows in batches.buckets:
        size = args.batch_tokens // width
        if len(rows) >= size:
            rows = rows[:size].to(device)
            trainer.backward(texts.ids[rows, :width].long(), texts.starts[rows], texts.lengths[rows])
            trainer.optimiser.zero_grad(set_to_none=True)
            log(f"width {width} is compiled")
    spare = 2 if args.random else 25
    begun = time.time()
    trainer.run(batches, max(5, end - begun - spare), lambda: export(args.out / "partial.gguf", target, file, trainer.head, d2t))
    export(args.out / "eagle3.gguf", target, file, trainer.head, d2t)
    report = {
        "steps": trainer.steps,
        "training_seconds": round(time.time() - begun),
        "batch_tokens": args.batch_tokens,
        "training_answers": len(texts),
        "training_tokens": texts.answer_tokens(),
        "held_out_coverage": covered,
        "by_kind": {},
    }
    log(f"exported after {trainer.steps} steps")
    target.layer = decoder_layer
    report["all"] = evaluate(target, trainer.head, held, d2t)
    for kind in sorted(set(held.kinds)):
        rows = torch.tensor([i for i, k in enumerate(held.kinds) if k == kind], device=device)
        report["by_kind"][kind] = evaluate(target, trainer.head, held.select(rows), d2t)
    (args.out / "report.json").write_text(json.dumps(report, indent=1))
    log(json.dumps(report))


if __name__ == "__main__":
    main()
