"""Decodes with llama.cpp on request, plainly and with its prompt-lookup decoding: one JSON object a line on stdin, one a line on stdout.

{"model": PATH, "context": N, "threads": T}                     loads it; answers with the version
{"prompt": [ID, ...], "n": N, "draft": K}                       answers with the tokens and tokens per second; 0 decodes plainly

Greedy, through llama-cpp-python's own loop (`Llama.generate` and `LlamaPromptLookupDecoding`), since llama.cpp's library has no
prompt lookup. The prompt is not counted.
"""

import json
import sys
import time

import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding


def answer(**fields):
    print(json.dumps(fields), flush=True)


def main():
    load = json.loads(sys.stdin.readline())
    models = {}

    def model(draft):
        if draft not in models:
            lookup = LlamaPromptLookupDecoding(num_pred_tokens=draft) if draft else None
            threads = load["threads"]
            models[draft] = llama_cpp.Llama(
                load["model"],
                n_ctx=load["context"],
                n_batch=512,
                n_threads=threads,
                n_threads_batch=threads,
                draft_model=lookup,
                verbose=False,
            )
        return models[draft]

    model(0)
    answer(version=f"llama-cpp-python {llama_cpp.__version__}")
    for line in sys.stdin:
        ask = json.loads(line)
        llama = model(ask["draft"])
        llama.reset()
        tokens, start = [], None
        for token in llama.generate(ask["prompt"], temp=0.0, reset=True):
            # The first token comes with the prompt.
            start = start or time.perf_counter()
            tokens.append(token)
            if len(tokens) == ask["n"] or token == llama.token_eos():
                break
        seconds = time.perf_counter() - start
        answer(tokens=tokens, tokens_per_second=(len(tokens) - 1) / seconds if len(tokens) > 1 else None)


main()
