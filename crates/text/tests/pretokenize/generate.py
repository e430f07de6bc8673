"""Writes cases.json: how Hugging Face's `tokenizers` cuts tricky texts with each pre-tokenizer.

The definitions are the published ones. Run it in this folder.
"""

import json
from pathlib import Path

from tokenizers import Regex
from tokenizers import pre_tokenizers as pre

TEXTS = [
    "Hello, world!",
    "I've we'LL 'tis 'RE don't",
    " a  b   c    ",
    "a\n\n\nb\n \n c\r\n\r\nd",
    "\t\tif x:\n\t\t\treturn  y",
    "tab \tword  \t9",
    "1 22 333 4444 55555 3.14159",
    "x1y22z333",
    "²½٣Ⅷ④",
    "a,b;c...!!!???",
    "``$1+<=>^~|_{}[]()#@&*%\\\"",
    "https://example.org/a?b=c&d=e#f",
    "fn main() { let x = a[0] + 1; }",
    "我想在apple工作1314151天～。「引用」",
    "한국어 텍스트 ࠀ",
    "Äpfel naïve café e\u0301",
    "нещо на Български",
    "🚀 (normal) 😶\u200d🌫\ufe0f ✅",
    "\u00a0nbsp\u3000wide\u2028sep\u0085nel",
    "‘quoted’ “text” — dash",
    "ǅ µ ª º ՙ ა ᲀ",
    "x\u0000\u0001y",
    " \n",
    "HTTPServer's getURLs ÉTATs'LL l'Été",
    "",
]


def split(pattern):
    return pre.Split(Regex(pattern), "isolated")


words = pre.ByteLevel(add_prefix_space=False, use_regex=True)
spelling = pre.ByteLevel(add_prefix_space=False, use_regex=False)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LARGE, SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{LARGE}*{SMALL}+{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{LARGE}+{SMALL}*{CONTRACTION}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
SEED = (
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}"
    "| ?[^\\s\\p{L}\\p{N}\r\n]+|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)
EXAONE_MOE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
DEEPSEEK3 = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{LARGE}*{SMALL}+|[^\r\n\p{{L}}\p{{N}}]?{LARGE}+{SMALL}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NOT_HAN = r"&&[^\p{Han}]]"
KIMI_LARGE, KIMI_SMALL = LARGE[:-1] + NOT_HAN, SMALL[:-1] + NOT_HAN
KIMI = (
    r"[\p{Han}]+"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{KIMI_LARGE}*{KIMI_SMALL}+{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{KIMI_LARGE}+{KIMI_SMALL}*{CONTRACTION}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
IDEOGRAPHS = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEFINITIONS = {
    "gpt-2": [words],
    "smollm": [pre.Digits(True), words],
    "starcoder": [pre.Digits(True), words],
    "refact": [pre.Digits(True), words],
    "mpt": [words],
    "llama-bpe": [split(LLAMA3), spelling],
    "gpt-4o": [split(GPT4O), spelling],
    "tekken": [split(TEKKEN), spelling],
    "kimi-k2": [split(KIMI), spelling],
    "qwen2": [split(QWEN2), spelling],
    "qwen35": [split(QWEN35), spelling],
    "bailingmoe2": [split(BAILING), spelling],
    "seed-coder": [split(SEED), spelling],
    "exaone-moe": [split(EXAONE_MOE), spelling],
    "deepseek-v3": [
        split(r"\p{N}{1,3}"),
        split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
        split(DEEPSEEK3),
        spelling,
    ],
    "deepseek-coder": [
        split(r"[\r\n]"),
        split(r"\s?\p{L}+"),
        split(r"\s?\p{P}+"),
        split(IDEOGRAPHS),
        pre.Digits(True),
        spelling,
    ],
    "falcon": [pre.Punctuation("contiguous"), words, split("[0-9][0-9][0-9]")],
}

# The byte that each character of a byte-level spelling stands for.
printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
others = [byte for byte in range(256) if byte not in printable]
BYTES = {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}

cases = []
for name, stages in DEFINITIONS.items():
    for text in TEXTS:
        pieces = pre.Sequence(stages).pre_tokenize_str(text)
        cut = [bytes(BYTES[c] for c in piece).decode() for piece, _ in pieces]
        cases.append([name, text, cut])
lines = ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases)
Path(__file__).with_name("cases.json").write_text(f"[\n{lines}\n]\n")
