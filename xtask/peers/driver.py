"""The protocol of a peer's process: one JSON object a line on stdin, one a line on stdout.

{"model": PATH, "context": N, "cache": "f16" | ..., ...}         loads it; answers with version, build and storage of the weights
{"kind": "pp" | "tg", "n": N, "depth": D, "threads": T}          answers with tokens per second

An answer with "unsupported" says why the peer cannot run the model or the test. Like `kvark bench`, a request runs once uncounted
and once counted. Between requests the process waits in a read, and the answer says how much CPU time it took since the last
answer, which should be next to nothing.
"""

import json
import os
import sys
import time

# Libraries print to stdout, which belongs to the protocol.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

# Tokens before the generated ones in the uncounted run of a peer that computes them again in every run.
WARM_DEPTH = 64


def answer(**fields):
    print(json.dumps(fields), file=ANSWERS, flush=True)


def reason(error):
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__


def run(peer_class):
    """Answers until stdin ends.

    `peer_class(load)` loads a model. It has `version`, `build`, `weights`, `keeps_depth` (whether a context stays computed
    from run to run) and `speed(kind, n, depth, threads)`, tokens per second of one run.
    """
    load = json.loads(sys.stdin.readline())
    try:
        peer = peer_class(load)
    except Exception as error:  # Whatever a library raises is the reason.
        answer(unsupported=reason(error))
        return
    answer(version=peer.version, system_info=peer.build, weights=peer.weights)
    rested = time.process_time()
    for line in sys.stdin:
        idle = time.process_time() - rested
        ask = json.loads(line)
        kind, n, depth, threads = ask["kind"], ask["n"], ask["depth"], ask["threads"]
        try:
            peer.speed(kind, n, depth if peer.keeps_depth else min(depth, WARM_DEPTH), threads)
            speed = peer.speed(kind, n, depth, threads)
        except Exception as error:
            answer(unsupported=reason(error), idle_cpu_seconds=idle)
        else:
            # Let the workers' spinning after the last parallel section run out before the next side's turn.
            time.sleep(0.1)
            answer(tokens_per_second=speed, idle_cpu_seconds=idle)
        rested = time.process_time()
