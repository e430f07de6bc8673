"""Distils SmolLM2-135M-Instruct into a small hybrid and a small mixture of experts, on its own answers.

    python3 distil.py MODEL.gguf OUT --texts texts.pt --generate-seconds 110             # the answers
    python3 distil.py MODEL.gguf OUT --texts texts.pt --student hybrid --seconds 400     # OUT/smollm2-hybrid-14m.gguf
    python3 distil.py MODEL.gguf OUT --texts texts.pt --student experts --seconds 400    # OUT/smollm2-experts-14m.gguf

The texts are those of `../eagle3/data.py`. A student learns the target's distribution at every position behind the chat's header.
In the last fifth of the time its matrices are rounded to Q4_0 in every step, as the file has them. `--tiny` runs every part
in seconds on a random tiny target.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "eagle3"))
import data
import gguf_file
import train as eagle3
from data import ChatTokenizer, RandomFile, Texts, log
from model import Target, full_logits
from students import BLOCK, STUDENTS, Rounded

# Positions whose logits are computed together.
PLACES = 4096
# How much of the loss is the distribution of the target; the rest is the token that follows.
TAUGHT = 0.8
ROUNDED_SHARE = 0.2
PROMPTS = ["What is the capital of France?", "Write a short poem about the sea.", "Explain why the sky is blue."]


def loss_of(hidden, embedding, wanted, labels, weight):
    logits = torch.mm(hidden, embedding.T.to(hidden.dtype)).float().log_softmax(-1)
    taught = -(wanted * logits).sum(-1)
    told = -logits.gather(1, labels[:, None])[:, 0]
    return ((TAUGHT * taught + (1 - TAUGHT) * told) * weight).sum(), (told * weight).sum()


class Distiller:
    def __init__(self, target, student, first, lr):
        self.target, self.student, self.first, self.lr, self.steps = target, student, first, lr, 0
        self.dtype = target.dtype
        matrices = [p for p in student.parameters() if p.dim() > 1]
        vectors = [p for p in student.parameters() if p.dim() <= 1]
        fused = target.device.type == "cuda"
        groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
        self.optimiser = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.97), fused=fused)
        self.loss_of = loss_of

    def step(self, ids, lengths, backward=True):
        """The mean loss over the positions that count, and the mean of minus the log-probability of the next token."""
        with torch.no_grad():
            taught = self.target.features(ids)[0].flatten(0, 1)
        hidden = self.student(ids, self.dtype).flatten(0, 1)
        leaf = hidden.detach().requires_grad_(backward)
        at = torch.arange(ids.shape[1], device=ids.device)[None]
        counts = ((at >= self.first - 1) & (at + 1 < lengths[:, None])).flatten().float()
        labels = ids.roll(-1, 1).flatten()
        total = counts.sum()
        embedding = self.student.embedding().detach().requires_grad_(backward)
        sums = torch.zeros(2, device=ids.device)
        for begin in range(0, len(labels), PLACES):
            part = slice(begin, begin + PLACES)
            with torch.no_grad():
                wanted = full_logits(taught[part], self.target.output).softmax(-1)
            loss, told = self.loss_of(leaf[part], embedding, wanted, labels[part], counts[part] / total)
            if backward:
                loss.backward()
            sums += torch.stack([loss.detach(), told.detach()])
        if backward:
            torch.autograd.backward(
                [hidden, self.student.embedding(), 0.02 * torch.as_tensor(self.student.balance(), device=ids.device).requires_grad_(True)],
                [leaf.grad, embedding.grad, torch.ones((), device=ids.device)],
            )
        return sums

    def run(self, batches, seconds):
        """Steps until the time is over; the rate follows the clock: a short rise, then a cosine."""
        begun, total = time.time(), 0.0
        for ids, _, lengths in batches:
            done = (time.time() - begun) / seconds
            if done >= 1:
                break
            self.student.rounds = done > 1 - ROUNDED_SHARE
            rate = min(1, (self.steps + 1) / 100) * (0.02 + 0.98 * 0.5 * (1 + np.cos(np.pi * done)))
            for group in self.optimiser.param_groups:
                group["lr"] = self.lr * rate
            total = total + self.step(ids, lengths)
            torch.nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
            self.optimiser.step()
            self.optimiser.zero_grad(set_to_none=True)
            self.steps += 1
            if self.steps % 100 == 0:
                loss, told = (total / 100).tolist()
                log(f"step {self.steps}, loss {loss:.3f}, next token {told:.3f}, {100 * done:.0f} %")
                total = 0.0


@torch.no_grad()
def evaluate(target, student, texts, first, dtype):
    """Over held-out texts: the mean of minus log p of the next token by target and student, and how often the student's
    best token is the target's."""
    sums = torch.zeros(4, device=target.device, dtype=torch.float64)
    for rows in torch.arange(len(texts), device=target.device).split(32):
        part = texts.select(rows)
        ids = part.ids.long()
        at = torch.arange(ids.shape[1], device=ids.device)[None]
        counts = ((at >= first - 1) & (at + 1 < part.lengths[:, None])).flatten()
        labels = ids.roll(-1, 1).flatten()[counts]
        ours = student(ids, dtype).flatten(0, 1)[counts]
        ours = full_logits(ours, student.embedding().to(dtype)).log_softmax(-1)
        theirs = full_logits(target.features(ids)[0].flatten(0, 1)[counts], target.output).log_softmax(-1)
        told = lambda log_p: -log_p.gather(1, labels[:, None]).sum().double()
        same = (ours.argmax(-1) == theirs.argmax(-1)).sum().double()
        sums += torch.stack([told(theirs), told(ours), same, counts.sum().double()])
    target_nll, nll, same, count = sums.tolist()
    return {"tokens": int(count), "target_nll": target_nll / count, "nll": nll / count, "same_best": same / count}


@torch.no_grad()
def greedy(student, ids, count, end, device, dtype):
    ids = list(ids)
    for _ in range(count):
        hidden = student(torch.tensor([ids], device=device), dtype)[0, -1:]
        ids.append(int(full_logits(hidden, student.embedding().to(dtype)).argmax()))
        if ids[-1] == end:
            break
    return ids


def export(path, student, file, name):
    """The student with the target's tokenizer and chat template."""
    kinds = {bool: 7, int: 4, float: 6}
    entry = lambda key, value: (key, file.kinds.get(key) or (5 if isinstance(value, list) else kinds[type(value)]), value)
    keys = student.keys() | {
        "block_count": student.layers, "embedding_length": student.hidden, "context_length": 2048, "vocab_size": student.vocab,
        "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 10000.0,
    }  # fmt: skip
    metadata = [("general.architecture", 8, student.ARCH), ("general.name", 8, name), ("general.file_type", 4, 2)]
    metadata += [entry(f"{student.ARCH}.{key}", value) for key, value in keys.items()]
    metadata += [entry(key, value) for key, value in file.metadata.items() if key.startswith("tokenizer.")]
    tensors = []
    for key, value in student.tensors.items():
        key, value = key.replace("/", "."), value.detach().float().cpu().numpy()
        if key.endswith("ssm_a"):
            value = -np.exp(value)
        tensors.append((key, gguf_file.Q4_0 if student.stored(key) else gguf_file.F32, value))
    gguf_file.write(path, metadata, tensors)


def random_texts(vocab, longest, count):
    lengths = torch.randint(longest // 2, longest + 1, (count,))
    return Texts(torch.randint(3, vocab, (count, longest)), torch.full((count,), 3), lengths, ["random"] * count)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("out", type=Path)
    parser.add_argument("--texts", type=Path, required=True, help="file of the texts")
    parser.add_argument("--student", choices=STUDENTS)
    parser.add_argument("--seconds", type=float, default=400, help="time for training")
    parser.add_argument("--generate-seconds", type=float, default=110, help="time for the texts")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--batch-tokens", type=int, default=24576)
    parser.add_argument("--tiny", action="store_true", help="a random tiny target")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(3)
    torch.backends.cuda.matmul.allow_tf32 = True
    args.out.mkdir(parents=True, exist_ok=True)
    file = RandomFile(True) if args.tiny else gguf_file.Reader(args.model)
    target = Target(file, device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    longest, slots = (128, 16) if args.tiny else (384, 4096)
    if args.tiny:
        args.batch_tokens = 512
    tokenizer = None if args.tiny else ChatTokenizer(file)
    if not args.student:
        if args.tiny:
            made = [random_texts(target.embedding.shape[0], longest, count) for count in (64, 16)]
        else:
            here = Path(__file__).parent.parent / "eagle3"
            held_out = (here / "held_out.txt").read_text().splitlines()
            excluded = data.prompts.Excluded([here / "held_out.txt"])
            made = data.make(target, tokenizer, excluded, held_out, 160000, 24000, slots, longest, args.generate_seconds)
        torch.save([(t.ids.cpu(), t.starts.cpu(), t.lengths.cpu(), t.kinds) for t in made], args.texts)
        return
    texts, held = (
        Texts(*(part.to(device) for part in parts[:3]), parts[3]) for parts in torch.load(args.texts, weights_only=False)
    )
    first = 3 if args.tiny else len(tokenizer.prefix)
    sizes = {"hidden": 32, "layers": 4, "ffn": 32} if args.tiny else {}
    student = STUDENTS[args.student](target.embedding.shape[0], **sizes).to(device)
    count = sum(p.numel() for p in student.parameters())
    log(f"{args.student}: {count} parameters; {len(texts)} texts, {int(texts.lengths.sum())} tokens; {len(held)} held out")
    distiller = Distiller(target, student, first, args.lr)
    if device.type == "cuda":
        torch._dynamo.config.suppress_errors = True
        target.compile()
        student.block = torch.compile(student.block, dynamic=False)
        distiller.loss_of = torch.compile(loss_of, dynamic=False)
    batches = eagle3.Batches(texts, [longest * 2 // 3, longest], args.batch_tokens, device)
    seen = set()
    for ids, _, lengths in batches:
        if ids.shape[1] in seen:
            break
        seen.add(ids.shape[1])
        for student.rounds in (False, True):
            distiller.step(ids, lengths)
            distiller.optimiser.zero_grad(set_to_none=True)
        log(f"width {ids.shape[1]} is compiled")
    begun = time.time()
    distiller.run(batches, args.seconds)
    student.rounds = True
    name = f"smollm2-{args.student}-{int(count / 1e6)}m"
    if not args.tiny:
        export(args.out / f"{name}.gguf", student, file, name)
    report = {
        "student": args.student, "parameters": count, "steps": distiller.steps, "seconds": round(time.time() - begun),
        "batch_tokens": args.batch_tokens, "texts": len(texts), "text_tokens": int(texts.lengths.sum()),
    }  # fmt: skip
    (args.out / f"{name}.json").write_text(json.dumps(report, indent=1))
    if "block" in student.__dict__:
        del student.block
    target.layer = eagle3.decoder_layer
    report["held_out"] = evaluate(target, student, held, first, target.dtype)
    (args.out / f"{name}.json").write_text(json.dumps(report, indent=1))
    log(json.dumps(report))
    if tokenizer:
        for prompt in PROMPTS:
            ids = greedy(student, tokenizer.chat(prompt), 60, tokenizer.end, device, target.dtype)
            log(repr(tokenizer.decode(ids[len(tokenizer.prefix) :])))


if __name__ == "__main__":
    main()
