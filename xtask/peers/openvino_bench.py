"""Measures OpenVINO GenAI on request: one JSON object a line on stdin, one a line on stdout.

{"model": PATH, "context": N, "cache": "f16" | ...}              answers with versions, or with why the model cannot run
{"kind": "pp" | "tg", "n": N, "depth": D, "threads": T}          answers with tokens per second

It reads GGUF files itself. Equal prompts would hit its prefix cache, so every prompt is made of fresh random tokens. A
request runs once uncounted and once counted.
"""

import json
import random
import sys
import time

import numpy
import openvino
import openvino_genai


def answer(**fields):
    print(json.dumps(fields), flush=True)


class Peer:
    def __init__(self, model):
        self.model = model
        self.threads = None
        self.pipeline = None
        self.random = random.Random(1)

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

    def tokens_per_second(self, kind, n, depth):
        if kind == "pp":
            return n / self.run(n, 1)[0]
        return 1 / self.run(max(depth, 1), n + 1)[1]


def main():
    load = json.loads(sys.stdin.readline())
    peer = Peer(load["model"])
    version = f"openvino-genai {openvino_genai.get_version()}"
    try:
        peer.load(1)
    except RuntimeError as error:
        answer(version=version, system_info="", weights="", unsupported=str(error).strip().splitlines()[-1])
        return
    answer(version=version, system_info="this CPU", weights="its own packing")
    rested = time.process_time()
    for line in sys.stdin:
        idle = time.process_time() - rested
        ask = json.loads(line)
        peer.load(ask["threads"])
        for _ in range(2):
            speed = peer.tokens_per_second(ask["kind"], ask["n"], ask["depth"])
        # Let the workers' spinning after the last parallel section run out before the other side's turn.
        time.sleep(0.1)
        answer(tokens_per_second=speed, idle_cpu_seconds=idle)
        rested = time.process_time()


main()
