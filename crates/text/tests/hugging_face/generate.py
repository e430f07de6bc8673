"""Writes small `tokenizer.json` files of every kind beside it and the ids that `tokenizers` gives for some texts.

    python crates/text/tests/hugging_face/generate.py

Needs tokenizers 0.23. The tokenizers are trained here on a few sentences, then given the pipelines of real models.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).parent
PROSE = [
    "The quick brown fox jumps over the lazy dog, and the dog didn't mind at all.",
    "In 1984 there were 12,345 ways to count; we've counted them twice (at least).",
    "Voilà: naïve café, Straße, 日本語のテキスト, привет мир, and an emoji 🙂.",
    "def main():\n    return {'key': [1, 2, 3]}\n\n\n    # done\t\tindeed\r\n",
    "they're we'll I'm you'd it's WE'VE Don'T   spaced   out  ",
]
TEXTS = PROSE + [
    "",
    " ",
    "  leading and trailing  ",
    "a\n\n b\n\t c",
    "unseen ☃ snowman and \u0000 zero",
    "<s>not special</s><|user|> hi",
    "1234567890 x1y22z333",
    "ünïcödé ÀÉ Ωμέγα",
]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def byte_level(pre, *, bos=False, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(PROSE, trainer)
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.add_tokens([AddedToken("<|user|>", special=False, normalized=False)])
    if bos:
        ids = {t: tokenizer.token_to_id(t) for t in ("<s>", "</s>")}
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=list(ids.items()))
    return tokenizer


def sentence_piece(normalizer, pre=None):
    """A vocabulary of SentencePiece's form: characters, byte tokens and merges."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.train_from_iterator(PROSE[:2] + PROSE[4:], trainers.BpeTrainer(vocab_size=260, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    for token in sorted(model["vocab"], key=model["vocab"].get):
        vocab.setdefault(token, len(vocab))
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizer
    if pre is not None:
        tokenizer.pre_tokenizer = pre
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.add_tokens([AddedToken("<|user|>", special=False, normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def word_piece(lowercase):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(PROSE, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


split = lambda pattern: pre_tokenizers.Split(Regex(pattern), "isolated")
ByteLevel = pre_tokenizers.ByteLevel
Sequence = pre_tokenizers.Sequence
TOKENIZERS = {
    "gpt2": byte_level(ByteLevel(add_prefix_space=False)),
    "smollm": byte_level(Sequence([pre_tokenizers.Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])),
    "llama3": byte_level(
        Sequence([split(LLAMA3), ByteLevel(add_prefix_space=False, use_regex=False)]), bos=True, ignore_merges=True
    ),
    "qwen2": byte_level(Sequence([split(QWEN2), ByteLevel(add_prefix_space=False, use_regex=False)])),
    "llama2": sentence_piece(normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])),
    "gemma": sentence_piece(
        normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous")
    ),
    "metaspace": sentence_piece(
        normalizers.Sequence([]), pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    ),
    "bert": word_piece(True),
    "bert_cased": word_piece(False),
}

if __name__ == "__main__":
    cases = {}
    for name, tokenizer in TOKENIZERS.items():
        (HERE / f"{name}.json").write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")
        encode = lambda text, special: tokenizer.encode(text, add_special_tokens=special).ids
        cases[name] = [[text, encode(text, False), encode(text, True)] for text in TEXTS]
    (HERE / "cases.json").write_text(json.dumps(cases, ensure_ascii=True, separators=(",", ":")) + "\n")
