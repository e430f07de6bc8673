"""Measures OpenVINO GenAI on request. `driver.py` has the protocol.

It reads GGUF files itself. Equal prompts would hit its prefix cache, so every prompt is made of fresh random tokens.
"""

import random
import time

import driver

import numpy
import openvino
import openvino_genai


class Peer:
    keeps_depth = False
    build = "this CPU"
    weights = "its own packing"

    def __init__(self, load):
        if load["cache"] != "f16":
            raise RuntimeError("it stores keys and values as it likes")
        self.model = load["model"]
        self.version = f"openvino-genai {openvino_genai.get_version()}"
        self.threads = None
        self.pipeline = None
        self.random = random.Random(1)
        self.load(1)

    def load(self, threads):
        """The number of threads is an option of the pipeline."""
        if threads != self.threads:
            self.pipeline = None
            self.pipeline = openvino_genai.LLMPipeline(self.model, "CPU", INFERENCE_NUM_THREADS=threads)
            self.threads = threads

    def run(self, tokens, new_tokens):
        """Seconds until the first token, and of each later one."""
        # Low ids are ordinary tokens in the vocabularies that it reads.
        ids = numpy.array([[self.random.randrange(1000, 20000) for _ in range(tokens)]], dtype=numpy.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))
        config = openvino_genai.GenerationConfig(max_new_tokens=new_tokens, ignore_eos=True, do_sample=False)
        start = time.perf_counter()
        result = self.pipeline.generate(inputs, config)
        total = time.perf_counter() - start
        if new_tokens == 1:
            return total, None
        return total, result.perf_metrics.get_tpot().mean / 1e3

    def speed(self, kind, n, depth, threads):
        self.load(threads)
        if kind == "pp":
            if depth > 0:
                raise RuntimeError("it has no prompt behind a context")
            return n / self.run(n, 1)[0]
        return 1 / self.run(max(depth, 1), n + 1)[1]


driver.run(Peer)
