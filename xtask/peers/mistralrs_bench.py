"""Measures mistral.rs on request. `driver.py` has the protocol.

It takes text, so a prompt is one word repeated; it reports the number of tokens and the seconds of prompt and answer.
"""

import importlib.metadata
import os

import driver

os.environ.setdefault("RUST_LOG", "error")

WORD = " the"


class Peer:
    keeps_depth = False
    build = "this CPU"
    weights = "as in the file"

    def __init__(self, load):
        if load["cache"] != "f16":
            raise RuntimeError("it stores keys and values in f16")
        # Its thread pool is made when it is imported.
        self.threads = load["threads"]
        os.environ["RAYON_NUM_THREADS"] = str(self.threads)
        import mistralrs

        self.library = mistralrs
        folder, file = os.path.split(os.path.abspath(load["model"]))
        which = mistralrs.Which.GGUF(quantized_model_id=folder, quantized_filename=file)
        # Without its cache of prefixes: every prompt is computed.
        self.runner = mistralrs.Runner(which, max_seqs=1, prefix_cache_n=0, token_source="none", no_paged_attn=True)
        self.version = f"mistralrs {importlib.metadata.version('mistralrs')}"
        # Tokens of a prompt beside one for every word, such as BOS.
        self.more = self.run(4, 1).prompt_tokens - 4

    def run(self, words, new_tokens):
        request = self.library.CompletionRequest(
            prompt=(WORD * words).strip(), model="default", max_tokens=new_tokens, temperature=0.0
        )
        return self.runner.send_completion_request(request).usage

    def speed(self, kind, n, depth, threads):
        if threads != self.threads:
            raise RuntimeError(f"it was started with {self.threads} threads")
        if kind == "pp" and depth > 0:
            raise RuntimeError("it has no prompt behind a context")
        length = n if kind == "pp" else max(depth, 1 + self.more)
        # The first token of an answer comes out of the prompt.
        usage = self.run(length - self.more, 1 if kind == "pp" else n + 1)
        if usage.prompt_tokens != length:
            raise RuntimeError(f"a prompt of {length} tokens became one of {usage.prompt_tokens}")
        if kind == "pp":
            return n / usage.total_prompt_time_sec
        if usage.completion_tokens != n + 1:
            raise RuntimeError(f"it ended an answer after {usage.completion_tokens} of {n + 1} tokens")
        return n / usage.total_completion_time_sec


driver.run(Peer)
