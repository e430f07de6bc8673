"""The texts that a head learns: the target invents user messages, then answers them and the prompts of prompts.py."""

import random
import time

import numpy as np
import torch

import openers
import prompts
from generate import Generator, cut_loops

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
# Most tokens of an invented message.
LONGEST_MESSAGE = 150
# Greedy answers are what most users run; the others add variety.
TEMPERATURES = [0.0] * 13 + [0.7] * 4 + [1.0] * 3
BEGUN = time.time()


def log(text):
    print(f"[{time.time() - BEGUN:6.1f} s] {text}", flush=True)


class ChatTokenizer:
    """The byte-level BPE of the file, and the chat template of SmolLM2."""

    def __init__(self, file):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        tokens = file.metadata["tokenizer.ggml.tokens"]
        merges = [tuple(merge.split(" ")) for merge in file.metadata["tokenizer.ggml.merges"]]
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.bpe = Tokenizer(models.BPE(vocab=self.ids, merges=merges))
        self.bpe.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        self.bpe.decoder = decoders.ByteLevel()
        self.start, self.end = self.ids["<|im_start|>"], self.ids["<|im_end|>"]
        self.prefix = [self.start, *self.text(f"system\n{SYSTEM}"), self.end, *self.text("\n"), self.start, *self.text("user\n")]
        self.suffix = [self.end, *self.text("\n"), self.start, *self.text("assistant\n")]

    def text(self, text):
        return self.bpe.encode(text, add_special_tokens=False).ids

    def chat(self, message):
        return self.prefix + self.text(message) + self.suffix

    def decode(self, ids):
        return self.bpe.decode(ids, skip_special_tokens=False)


class RandomFile:
    """A random model: of the size of SmolLM2-135M to measure speeds, or tiny to run every part in seconds."""

    def __init__(self, tiny):
        rng = np.random.default_rng(1)
        layers, heads, kv_heads, hidden, mlp, vocab = (8, 3, 1, 96, 128, 300) if tiny else (30, 9, 3, 576, 1536, 49152)
        self.metadata = {
            "llama.block_count": layers, "llama.attention.head_count": heads, "llama.attention.head_count_kv": kv_heads,
            "llama.embedding_length": hidden, "llama.feed_forward_length": mlp,
            "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 10000.0,
            "llama.context_length": 512,
        }  # fmt: skip
        kv = hidden * kv_heads // heads
        shapes = {"token_embd.weight": (vocab, hidden), "output_norm.weight": (hidden,)}
        for i in range(layers):
            p = f"blk.{i}."
            shapes |= {p + "attn_norm.weight": (hidden,), p + "attn_q.weight": (hidden, hidden), p + "attn_k.weight": (kv, hidden),
                       p + "attn_v.weight": (kv, hidden), p + "attn_output.weight": (hidden, hidden), p + "ffn_norm.weight": (hidden,),
                       p + "ffn_gate.weight": (mlp, hidden), p + "ffn_up.weight": (mlp, hidden), p + "ffn_down.weight": (hidden, mlp)}  # fmt: skip
        self.tensors = shapes
        self.values = {n: rng.standard_normal(s, dtype=np.float32) * 0.1 for n, s in shapes.items()}

    def tensor(self, name):
        return self.values[name]


class Texts:
    """Padded ids of texts, where each answer begins, and where it ends."""

    def __init__(self, ids, starts, lengths, kinds=None):
        self.ids, self.starts, self.lengths, self.kinds = ids, starts, lengths, kinds

    def __len__(self):
        return len(self.ids)

    def answer_tokens(self):
        return int((self.lengths - self.starts).sum())

    def select(self, rows):
        kinds = [self.kinds[i] for i in rows.tolist()] if self.kinds else None
        return Texts(self.ids[rows], self.starts[rows], self.lengths[rows], kinds)

    def counts(self, vocab):
        column = torch.arange(self.ids.shape[1], device=self.ids.device)[None]
        inside = (column >= self.starts[:, None]) & (column < self.lengths[:, None])
        return torch.bincount(self.ids[inside], minlength=vocab)


def invent(generator, tokenizer, excluded, rng, wanted, until):
    """User messages that the target writes after the header of a chat and a few given words."""
    begun = [tokenizer.prefix + tokenizer.text(openers.draw(rng)) for _ in range(wanted)]
    limit = len(tokenizer.prefix) + LONGEST_MESSAGE
    ids, _, lengths, _ = generator.run(begun, [1.0] * len(begun), limit, until, wanted)
    messages, seen = [], set()
    for row, length in zip(ids.cpu().numpy(), lengths.tolist()):
        message = row[len(tokenizer.prefix) : length - 1]
        if row[length - 1] == tokenizer.end and len(message) > 2 and message.tobytes() not in seen:
            seen.add(message.tobytes())
            messages.append(message.tolist())
    texts = tokenizer.bpe.decode_batch(messages, skip_special_tokens=False)
    kept = [message for message, text in zip(messages, texts) if "<|im_" not in text and not excluded.like(text)]
    log(f"{len(ids)} messages invented, {len(messages)} different ones that ended, {len(kept)} unlike excluded ones")
    return kept


def answer(generator, held, training, limit, until):
    """Answers to (kind, ids, temperature): the held-out texts and those to train on, without loops."""
    both = held + training
    ids, starts, lengths, index = generator.run([x[1] for x in both], [x[2] for x in both], limit, until, len(both))
    log(f"{len(ids)} texts, {int((lengths - starts).sum())} tokens of answers")
    lengths = cut_loops(ids, starts, lengths)
    long_enough = lengths - starts > 4
    first = torch.zeros_like(long_enough)
    seen = set()
    for row in (index < len(held)).nonzero()[:, 0].tolist():
        number = int(index[row])
        first[row] = number not in seen
        seen.add(number)
    kinds = [both[i][0] for i in index.tolist()]
    texts = Texts(ids, starts, lengths, kinds)
    select = lambda mask: texts.select((mask & long_enough).nonzero()[:, 0])
    return select(index >= len(held)), select((index < len(held)) & first)


def make(target, tokenizer, excluded, held_out, invented, templates, slots, longest, seconds):
    """Texts to train on and held-out texts, in `seconds`."""
    rng = random.Random(3)
    until = time.time() + seconds
    built, built_held = prompts.build(templates, 11)
    built = [(kind, prompt) for kind, prompt in built if not excluded.like(prompt)]
    generator = Generator(target, slots, longest, tokenizer.prefix, tokenizer.end)
    log(f"the generator is ready; {len(built)} prompts of templates; a prompt: {tokenizer.chat(built[0][1])}")
    messages = invent(generator, tokenizer, excluded, rng, invented, time.time() + 0.25 * seconds)
    for message in messages[:40]:
        log("invented: " + repr(tokenizer.decode(message)[:150]))
    held = [("held_out.txt", tokenizer.chat(prompt), 0.0) for prompt in held_out]
    counted = {}
    for kind, prompt in built_held:
        counted[kind] = counted.get(kind, 0) + 1
        if counted[kind] <= 96:
            held.append((kind, tokenizer.chat(prompt), 0.0))
    asked = lambda message: tokenizer.prefix + message + tokenizer.suffix
    held += [("invented", asked(message), 0.0) for message in messages[:512]]
    training = [("invented", asked(message), rng.choice(TEMPERATURES)) for message in messages[512:]]
    training += [(kind, tokenizer.chat(prompt), rng.choice(TEMPERATURES)) for kind, prompt in built]
    rng.shuffle(training)
    return answer(generator, held, training, longest, until)


def make_random(target, slots, longest, seconds):
    """What `make` makes, of random prompts for a random model."""
    rng = random.Random(3)
    vocab, prefix = target.embedding.shape[0], [3, 4, 5]
    prompt = lambda: ("chat", prefix + [rng.randrange(3, vocab) for _ in range(rng.randint(5, 12))], rng.choice([0.0, 1.0]))
    begun = time.time()
    generator = Generator(target, slots, longest, prefix, 2)
    log(f"the generator is ready after {time.time() - begun:.1f} s")
    begun = time.time()
    texts = answer(generator, [prompt() for _ in range(16)], [prompt() for _ in range(8 * slots)], longest, time.time() + seconds)
    log(f"{texts[0].answer_tokens() / (time.time() - begun):.0f} tokens per second")
    # A random model rarely ends a text by itself.
    for part in texts:
        room = part.lengths - part.starts - 5
        part.lengths = part.starts + 5 + (torch.rand(len(part), device=room.device) * room).long()
    return texts
