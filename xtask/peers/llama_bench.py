"""Measures llama.cpp on request: one JSON object a line on stdin, one a line on stdout.

{"model": PATH, "context": N, "cache": "f16" | ...}              loads it; answers with versions and the storage of the weights
{"kind": "pp" | "tg", "n": N, "depth": D, "threads": T}          answers with tokens per second

Like `kvark bench`, a request runs once uncounted and once counted. Between requests the process waits in a read, and
the answer says how much CPU time it took since the last answer, which should be next to nothing.
"""

import json
import sys
import time

import llama


def answer(**fields):
    print(json.dumps(fields), flush=True)


def main():
    load = json.loads(sys.stdin.readline())
    peer = llama.Llama(load["model"], load["context"], cache=load["cache"])
    # The very ids that `kvark bench` feeds.
    tokens = [i * 2654435761 % 2**32 % peer.vocab_size for i in range(load["context"])]
    depth = 0
    answer(version=llama.version(), system_info=llama.system_info(), weights=peer.weights())
    rested = time.process_time()
    for line in sys.stdin:
        idle = time.process_time() - rested
        ask = json.loads(line)
        peer.set_threads(ask["threads"])
        if ask["depth"] != depth:
            peer.rewind(0)
            depth = ask["depth"]
            peer.feed(tokens[:depth])
        todo = tokens[depth : depth + ask["n"]]
        for _ in range(2):
            peer.rewind(depth)
            start = time.perf_counter()
            if ask["kind"] == "pp":
                peer.feed(todo)
            else:
                for token in todo:
                    peer.feed([token])
            seconds = time.perf_counter() - start
        # Let the workers' spinning after the last parallel section run out before the other side's turn.
        time.sleep(0.1)
        answer(tokens_per_second=len(todo) / seconds, idle_cpu_seconds=idle)
        rested = time.process_time()


main()
