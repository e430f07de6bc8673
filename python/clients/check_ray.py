"""Replicas on a local Ray cluster: hit rate of prefix-aware routing against round-robin, and a replica that is killed.

    python python/clients/check_ray.py MODEL [--requests 1000] [--replicas 4]

Needs the wheel with `kvark[ray]`. Exits with 1 if a request is lost or the hit rate is below 1.5 times round-robin's.
"""

import argparse
import json
import os
import random
import signal
import threading
import time
from http.client import HTTPConnection
from queue import Empty, Queue

import ray
from kvark.replicas.app import application
from ray import serve

PORT = 18431


def trace(requests, seed):
    """Bodies of requests: agents with one of a few system prompts, each turn with the history so far."""
    choose = random.Random(seed)
    words = "river copper window market orange engine letter harbour winter candle forest signal garden planet".split()

    def text(n):
        return " ".join(choose.choice(words) for _ in range(n))

    systems = [text(250) for _ in range(48)]
    agents = []
    for _ in range(requests):
        if not agents or choose.random() < 0.15:
            agents.append([{"role": "system", "content": choose.choice(systems)}])
        agent = choose.choice(agents)
        agent.append({"role": "user", "content": text(choose.randrange(10, 40))})
        yield {"messages": list(agent), "max_tokens": 2, "temperature": 0}
        agent.append({"role": "assistant", "content": text(4)})
        if len(agent) > 13:
            agents.remove(agent)


def ask(body):
    connection = HTTPConnection("127.0.0.1", PORT, timeout=300)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def run(bodies, clients, kill_at=None, kill=None):
    """Sends all requests. Returns prompt tokens, cached tokens, lost requests and seconds."""
    queue, lock, totals, lost = Queue(), threading.Lock(), [0, 0], []
    for index, body in enumerate(bodies):
        queue.put((index, body))

    def client():
        while True:
            try:
                index, body = queue.get_nowait()
            except Empty:
                return
            if index == kill_at:
                kill()
            try:
                status, answer = ask(body)
            except OSError as error:
                status, answer = 0, repr(error)
            with lock:
                if status == 200:
                    usage = answer["usage"]
                    totals[0] += usage["prompt_tokens"]
                    totals[1] += usage["prompt_tokens_details"]["cached_tokens"]
                else:
                    lost.append((status, str(answer)[:300]))

    start = time.time()
    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return totals[0], totals[1], lost, time.time() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--round-robin", type=float, metavar="RATE", help="round-robin's hit rate, if it was measured before")
    args = parser.parse_args()
    ray.init(num_cpus=args.replicas + 1, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    bodies = list(trace(args.requests, 1))
    rates, failures = {}, []
    if args.round_robin:
        rates["round-robin"] = args.round_robin
    for routing in ("round-robin", "prefix"):
        if routing in rates:
            continue
        app = application(
            [args.model, "--ctx-size", "2048", "--threads", "1", "--queue", "1000"], replicas=args.replicas, slots=4,
            routing=routing,
        )
        serve.run(app, name="kvark")
        prompt, cached, lost, seconds = run(bodies, args.clients)
        rates[routing] = cached / prompt
        failures += lost
        print(f"{routing}: {args.requests} requests in {seconds:.0f} s, {len(lost)} lost, {cached / prompt:.1%} of the prompt tokens cached")
    handle = serve.get_deployment_handle("Replica", "kvark")

    def kill():
        process = handle.pid.remote().result()
        os.kill(process, signal.SIGKILL)
        print("killed a replica's server")

    prompt, cached, lost, seconds = run(list(trace(args.requests // 4, 2)), args.clients, args.requests // 8, kill)
    failures += lost
    print(f"with a replica killed in the middle: {args.requests // 4} requests in {seconds:.0f} s, {len(lost)} lost")
    for status, answer in failures[:5]:
        print("LOST", status, answer)
    ratio = rates["prefix"] / rates["round-robin"]
    print(f"hit rate {ratio:.2f} times that of round-robin")
    serve.shutdown()
    ray.shutdown()
    raise SystemExit(1 if failures or ratio < 1.5 else 0)


if __name__ == "__main__":
    main()
