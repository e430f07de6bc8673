"""Mixed load on kvark serve, with every greedy answer compared. `cargo xtask soak-serve` starts the servers.

A second server (--alone) computes the expected answers, one request at a time and without reuse.
"""

import argparse
import json
import os
import random
import threading
import time
from collections import Counter
from http.client import HTTPConnection, HTTPException
from pathlib import Path

WORDS = "river lake mountain sea forest city bridge tower garden ship".split()
WRONG = [b"{", b"[]", b'{"messages": []}', b'{"messages": [{"role": "user", "content": "x"}], "temprature": 1}']
# Memory grows while buffers reach the size of the load.
WARM_UP = 0.4


def call(address, method, path, body=None, timeout=300):
    """Status and body of a request."""
    connection = HTTPConnection(address.removeprefix("http://"), timeout=timeout)
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    try:
        connection.request(method, path, data)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def messages(number):
    """One of the chats of the load; some share a long beginning."""
    system = "You are a careful assistant. " * (2 + number % 3 * 10)
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": f"Say something about a {WORDS[number % len(WORDS)]}, number {number}."},
    ]


def content(body):
    return json.loads(body)["choices"][0]["message"]["content"]


class Load:
    """The clients, what they expect and what they found."""

    def __init__(self, args):
        self.args = args
        self.counts = Counter()
        self.problems = []
        self.lock = threading.Lock()
        self.stop = threading.Event()
        self.expected = {}

    def prepare(self):
        """Asks the server that runs alone for the answers."""
        for number in range(self.args.prompts):
            for most in (4, 24, 48):
                body = {"messages": messages(number), "max_tokens": most, "temperature": 0, "cache_prompt": False}
                status, answer = call(self.args.alone, "POST", "/v1/chat/completions", body)
                assert status == 200, answer
                self.expected[number, most] = content(answer)

    def count(self, name, problem=None):
        with self.lock:
            self.counts[name] += 1
            if problem:
                self.problems.append(f"{name}: {problem}")

    def client(self, index):
        choose = random.Random(self.args.seed * 1000 + index)
        actions = [self.whole, self.whole, self.stream, self.stream, self.leave, self.fork, self.wrong, self.sampled]
        while not self.stop.is_set():
            action = choose.choice(actions)
            try:
                action(choose)
            except (OSError, HTTPException) as error:
                self.count("connection error", f"{action.__name__}: {error!r}")

    def greedy(self, choose):
        number, most = choose.choice(list(self.expected))
        body = {"messages": messages(number), "max_tokens": most, "temperature": 0}
        return (number, most), body

    def compare(self, name, key, text):
        right = text == self.expected[key]
        self.count(name, None if right else f"{key}: {text!r} instead of {self.expected[key]!r}")

    def refused(self, status, body):
        """Whether the queue was full. Another error is a problem."""
        if status == 200:
            return False
        if status == 429:
            self.count("refused by a full queue")
            time.sleep(0.2)
        else:
            self.count("unexpected status", f"{status} {body[:200]}")
        return True

    def whole(self, choose):
        key, body = self.greedy(choose)
        status, answer = call(self.args.address, "POST", "/v1/chat/completions", body)
        if not self.refused(status, answer):
            self.compare("whole", key, content(answer))

    def stream(self, choose):
        key, body = self.greedy(choose)
        status, answer = call(self.args.address, "POST", "/v1/chat/completions", {**body, "stream": True})
        if self.refused(status, answer):
            return
        lines = [line[6:] for line in answer.decode().splitlines() if line.startswith("data: ")]
        if lines[-1] != "[DONE]":
            self.count("stream", f"ends with {lines[-1]}")
            return
        chunks = [json.loads(line) for line in lines[:-1]]
        self.compare("stream", key, "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks))

    def leave(self, choose):
        """Disconnects before the answer or in the middle of the stream."""
        _, body = self.greedy(choose)
        connection = HTTPConnection(self.args.address.removeprefix("http://"), timeout=300)
        try:
            data = json.dumps({**body, "stream": True, "max_tokens": 200, "ignore_eos": True}).encode()
            connection.request("POST", "/v1/chat/completions", data)
            if choose.random() < 0.5:
                answer = connection.getresponse()
                for _ in range(choose.randrange(12)):
                    answer.readline()
            else:
                time.sleep(choose.random() * 0.3)
        finally:
            connection.close()
        self.count("disconnect")

    def fork(self, choose):
        """Greedy answers on forks of one conversation are equal to the answer without it."""
        key, body = self.greedy(choose)
        base = "/v1/kvark/conversations"
        status, answer = call(self.args.address, "POST", base, {"messages": body["messages"][:1]})
        if self.refused(status, answer):
            return
        ids = [json.loads(answer)["id"]]
        try:
            for _ in range(2):
                status, answer = call(self.args.address, "POST", f"{base}/{ids[0]}/fork", {})
                if self.refused(status, answer):
                    return
                ids.append(json.loads(answer)["id"])
                turn = {**body, "messages": body["messages"][1:], "conversation": ids[-1]}
                status, answer = call(self.args.address, "POST", "/v1/chat/completions", turn)
                if not self.refused(status, answer):
                    self.compare("fork", key, content(answer))
        finally:
            for conversation in ids:
                call(self.args.address, "DELETE", f"{base}/{conversation}")

    def wrong(self, choose):
        status, answer = call(self.args.address, "POST", "/v1/chat/completions", choose.choice(WRONG))
        self.count("wrong request", None if status == 400 else f"{status} {answer[:200]}")

    def sampled(self, choose):
        _, body = self.greedy(choose)
        body |= {"temperature": 1.0, "seed": choose.randrange(1000), "n": choose.randrange(1, 4)}
        status, answer = call(self.args.address, "POST", "/v1/chat/completions", body)
        if not self.refused(status, answer):
            choices = json.loads(answer)["choices"]
            self.count("sampled", None if len(choices) == body["n"] else "choices are missing")


def resident(pid):
    """Resident memory in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


def handles(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def fill_pool(address):
    """Fills every cell once: the system counts a page of the pool as resident after its first write."""
    for number in range(100):
        state = json.loads(call(address, "GET", "/v1/kvark/cache")[1])
        if state["high_water"] >= state["capacity"] - 64:
            return
        prompt = f"{WORDS[number % len(WORDS)]} {number} " * 240
        status, answer = call(address, "POST", "/v1/completions", {"prompt": prompt, "max_tokens": 1})
        assert status == 200, answer
    raise SystemExit(f"the pool cannot be filled: {state}")


def idle_state(address):
    """The cache after all requests have ended, and the number that still runs after a minute."""
    for _ in range(600):
        state = json.loads(call(address, "GET", "/v1/kvark/cache")[1])
        running = sum(s["request"] is not None for s in state["sequences"]) + state["waiting"]
        if running == 0:
            break
        time.sleep(0.1)
    return state, running


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--alone", required=True)
    parser.add_argument("--pid", type=int, required=True, help="the process of the loaded server")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    load = Load(args)
    load.prepare()
    call(args.address, "POST", "/v1/chat/completions", {"messages": messages(0), "max_tokens": 2})
    fill_pool(args.address)
    files = handles(args.pid)
    threads = [threading.Thread(target=load.client, args=(index,)) for index in range(args.clients)]
    start = time.time()
    for thread in threads:
        thread.start()
    samples = []
    while (elapsed := time.time() - start) < args.minutes * 60:
        time.sleep(1)
        samples.append((elapsed / (args.minutes * 60), resident(args.pid)))
    load.stop.set()
    for thread in threads:
        thread.join()
    state, running = idle_state(args.address)
    retained = sum(s["tokens"] for s in state["sequences"])
    call(args.address, "DELETE", "/v1/kvark/cache")
    cleared, _ = idle_state(args.address)
    conversations = json.loads(call(args.address, "GET", "/v1/kvark/conversations")[1])["data"]
    time.sleep(1)
    after = handles(args.pid)
    warm = [memory for done, memory in samples if done >= WARM_UP]
    growth = 100 * (warm[-1] / warm[0] - 1)
    for name, count in sorted(load.counts.items()):
        print(f"{count:7} {name}")
    print(f"at the end: {running} running, {state['used']} cells used ({retained} tokens retained), "
          f"{cleared['used']} after clearing, {len(conversations)} conversations")
    print(f"file handles: {files} at the start, {after} at the end")
    print(f"resident memory after warm-up: {warm[0]} KiB, at the end {warm[-1]} KiB ({growth:+.2f} %), "
          f"most {max(warm)} KiB")
    if running or cleared["used"] or conversations:
        load.problems.append("requests, cells or conversations are left")
    if after > files:
        load.problems.append(f"{after - files} file handles are left")
    if growth > 2:
        load.problems.append(f"memory grew by {growth:.2f} %")
    for problem in load.problems[:20]:
        print(f"PROBLEM {problem}")
    print(f"{len(load.problems)} problems")
    raise SystemExit(1 if load.problems else 0)


if __name__ == "__main__":
    main()
