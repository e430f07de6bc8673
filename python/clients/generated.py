"""Generated calls against a running kvark serve, with a model of what every conversation must hold.

Workers send random schemas, grammars and expressions, and drive conversations: create, chat, tools, continue, cancel, fork, rewind,
keep, delete, several at once. After every call the conversation is read back and compared with the worker's own model of it. Any answer
of the server above 499 (but 503 while it loads), an answer that differs from the model, and the end of the server's process fail.

Only the standard library is used, so that nothing between this script and the server hides an error.
"""

import argparse
import http.client
import json
import os
import random
import sys
import threading
import time

BASE = "/v1/kvark/conversations"
CHAT = "/v1/chat/completions"
WORDS = "river lake stone cloud é🙂 tool </tool_call> <|im_end|> list of words {\"a\": 1} \n".split(" ")
TOOL = {"type": "function", "function": {"name": "look", "parameters": {
    "type": "object", "properties": {"word": {"type": "string", "maxLength": 8}}, "required": ["word"]}}}


class Wrong(Exception):
    """The server did something that it must not do."""


class Client:
    def __init__(self, address):
        self.host = address.removeprefix("http://")

    def request(self, method, path, body=None):
        """A status and the JSON of the answer."""
        connection = http.client.HTTPConnection(self.host, timeout=300)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data)
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        if response.status >= 500:
            raise Wrong(f"{response.status} for {method} {path} {str(body)[:2000]}: {text[:500]!r}")
        return response.status, json.loads(text)

    def cancelled(self, body, pieces):
        """Streams an answer, disconnects after some pieces, and returns the text that arrived; None if it was refused."""
        connection = http.client.HTTPConnection(self.host, timeout=300)
        connection.request("POST", CHAT, json.dumps({**body, "stream": True}))
        response = connection.getresponse()
        if response.status != 200:
            text = response.read()
            connection.close()
            if response.status >= 500:
                raise Wrong(f"{response.status} for a stream: {text[:500]!r}")
            return None
        received = ""
        while pieces > 0:
            line = response.readline().decode()
            if not line:
                break
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise Wrong(f"an error in a stream: {line}")
                for choice in chunk["choices"]:
                    received += choice["delta"].get("content") or ""
                pieces -= 1
        connection.close()
        return received


def text(rng, most=12):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, most)))


def schema(rng, depth=0):
    """A random JSON schema, most of them usable, some wrong or deep."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const"]
    kinds += ["object", "array", "anyOf", "allOf", "ref", "wrong"] if depth < 5 else []
    kind = rng.choice(kinds)
    if kind == "enum":
        return {"enum": [text(rng, 2) for _ in range(rng.randint(1, 4))]}
    if kind == "const":
        return {"const": rng.choice([1, "x", None, [1, 2], {"a": "b"}])}
    if kind == "string":
        return {"type": "string", "maxLength": rng.randint(0, 9)} if rng.random() < 0.5 else {"type": "string", "pattern": "[a-z]{1,5}"}
    if kind == "integer":
        low = rng.randint(-99, 99)
        return {"type": "integer", "minimum": low, "maximum": low + rng.randint(-1, 99)}
    if kind == "object":
        names = rng.sample("abcdef", rng.randint(0, 4))
        made = {"type": "object", "properties": {name: schema(rng, depth + 1) for name in names}}
        made["required"] = rng.sample(names, rng.randint(0, len(names)))
        if rng.random() < 0.2:
            made["additionalProperties"] = rng.random() < 0.5
        return made
    if kind == "array":
        return {"type": "array", "items": schema(rng, depth + 1), "maxItems": rng.randint(0, 3)}
    if kind in ("anyOf", "allOf"):
        return {kind: [schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]}
    if kind == "ref":
        count = rng.choice([1, 2, 50, 600])
        links = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{(i + 1) % count}"}, "maxItems": 1} for i in range(count)}
        return {"$ref": "#/$defs/d0", "$defs": links} if depth == 0 else {"type": "string"}
    if kind == "wrong":
        return rng.choice([{"type": "nonsense"}, {"$ref": "#/nowhere"}, {"type": 3}, {"pattern": "("}, True, False, {}])
    return {"type": kind}


def grammar(rng):
    """A random GBNF grammar: rules that use each other, groups, classes, repetitions, and noise in some."""
    rules = ["root"] + [f"r{i}" for i in range(rng.randint(0, 12))]
    noise = rng.random() < 0.2

    def item(depth):
        kind = rng.randrange(6 if depth < 4 else 4)
        nested = rng.randint(1, 30)
        made = [lambda: json.dumps(rng.choice(["a", "no", "river", " "])), lambda: rng.choice(["[a-z]", "[^x]", "[0-9a-f]", "."]),
                lambda: rng.choice(rules), lambda: '"z"', lambda: "(" + item(depth + 1) + " | " + item(depth + 1) + ")",
                lambda: "(" * nested + '"p"' + ")" * nested][kind]()
        if noise and rng.random() < 0.1:
            made += rng.choice(["(", "[", "{", "\\", ")", '"'])
        return made + rng.choice(["", "", "", "*", "+", "?", "{1,3}", "{2}", "{9999}"])

    return "\n".join(f"{name} ::= {' '.join(item(0) for _ in range(rng.randint(1, 4)))}" for name in rules)


def regex(rng):
    parts = ["a", "[a-z]+", "(", ")", "|", "*", "\\d{2,4}", ".", "(x|y)", "é", "{3}", "\\", "$", "^", "(?i)", "[", "a{1000}"]
    return "".join(rng.choice(parts) for _ in range(rng.randint(1, 12)))


class Worker(threading.Thread):
    def __init__(self, address, seed, until):
        super().__init__(daemon=True)
        self.client, self.rng, self.until = Client(address), random.Random(seed), until
        self.address = address
        # By id: turns as [role, content, partial], and the parent.
        self.known = {}
        self.counts = {}
        self.failure = None

    def run(self):
        try:
            while time.time() < self.until and self.failure is None:
                step = self.rng.choice([self.constrained, *[self.conversation] * 4])
                step()
        except Exception as error:
            self.failure = error

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    def constrained(self):
        rng = self.rng
        name, value = rng.choice([("json_schema", schema(rng)), ("grammar", grammar(rng)), ("regex", regex(rng))])
        body = {"messages": [{"role": "user", "content": text(rng)}], "max_tokens": rng.randint(1, 40), name: value}
        status, answer = self.client.request("POST", CHAT, body)
        if status not in (200, 400, 429):
            raise Wrong(f"{status} for {name} {value}: {answer}")
        message = json.dumps(answer)
        if "panic" in message or "backtrace" in message:
            raise Wrong(f"{name} {value}: {message[:500]}")
        if status == 200 and name == "json_schema" and answer["choices"][0]["finish_reason"] == "stop":
            json.loads(answer["choices"][0]["message"]["content"])
            self.count("JSON that was checked")
        self.count(f"{name} {status}")

    def conversation(self):
        rng = self.rng
        if not self.known or (len(self.known) < 12 and rng.random() < 0.15):
            return self.create()
        identity = rng.choice(list(self.known))
        steps = [self.chat] * 4 + [self.go_on, self.fork, self.rewind, self.delete, self.keep, self.cancel, self.tools, self.together]
        rng.choice(steps)(identity)
        for other in {identity} & set(self.known):
            self.compare(other)

    def create(self):
        rng = self.rng
        messages = [{"role": "system", "content": text(rng)}] if rng.random() < 0.5 else []
        for _ in range(rng.randint(0, 2)):
            messages += [{"role": "user", "content": text(rng)}, {"role": "assistant", "content": text(rng)}]
        status, made = self.client.request("POST", BASE, {"messages": messages})
        self.expect(status, 200, made)
        self.known[made["id"]] = [[[m["role"], m["content"], False] for m in messages], None]
        self.compare(made["id"])
        self.count("created")

    def expect(self, status, wanted, answer):
        if status != wanted:
            raise Wrong(f"{status}, not {wanted}: {json.dumps(answer)[:500]}")

    def is_full(self, status, answer):
        """Whether the context or the queue is full, which is no error; a full conversation is left."""
        return status == 429 or (status == 400 and answer["error"].get("code") == "context_length_exceeded")

    def answered(self, identity, new, answer):
        """Appends what a completion must have left."""
        turns = self.known[identity][0]
        turns += [[m["role"], m["content"], False] for m in new]
        choice = answer["choices"][0]
        content, partial = choice["message"]["content"] or "", choice["finish_reason"] not in ("stop", "tool_calls")
        if not new and turns and turns[-1][2]:
            turns[-1][1] += content
            turns[-1][2] = partial
        else:
            if len(turns) > len(new) and new and turns[-len(new) - 1][2]:
                turns[-len(new) - 1][2] = False
            turns.append(["assistant", content, partial])

    def chat(self, identity, **more):
        rng = self.rng
        new = [{"role": "user", "content": text(rng)}]
        body = {"conversation": identity, "messages": new, "max_tokens": rng.randint(1, 24), "temperature": rng.choice([0, 0.9]), **more}
        status, answer = self.client.request("POST", CHAT, body)
        if self.is_full(status, answer):
            return self.count("full")
        self.expect(status, 200, answer)
        self.answered(identity, new, answer)
        self.count("chats")

    def go_on(self, identity):
        turns = self.known[identity][0]
        body = {"conversation": identity, "messages": [], "max_tokens": self.rng.randint(1, 8)}
        status, answer = self.client.request("POST", CHAT, body)
        if self.is_full(status, answer):
            return self.count("full")
        complete = not turns or (turns[-1][0] == "assistant" and not turns[-1][2])
        dangling = status == 200 and complete and self.dangling(identity)
        self.expect(status, 200 if not complete or dangling else 400, answer)
        if status == 200:
            self.answered(identity, [], answer)
        self.count("went on" if status == 200 else "refused to go on")

    def dangling(self, identity):
        return self.known[identity][1] == "dangling"

    def tools(self, identity):
        turns = self.known[identity][0]
        new = [{"role": "user", "content": text(self.rng)}]
        body = {"conversation": identity, "messages": new, "tools": [TOOL], "tool_choice": "required", "max_tokens": 60}
        status, answer = self.client.request("POST", CHAT, body)
        if self.is_full(status, answer):
            return self.count("full")
        self.expect(status, 200, answer)
        self.answered(identity, new, answer)
        calls = answer["choices"][0]["message"].get("tool_calls")
        if calls:
            new = [{"role": "tool", "content": text(self.rng), "tool_call_id": calls[0]["id"]}]
            before = self.client.request("GET", f"{BASE}/{identity}")[1]["tokens"]
            body = {"conversation": identity, "messages": new, "tools": [TOOL], "max_tokens": 8}
            status, answer = self.client.request("POST", CHAT, body)
            if self.is_full(status, answer):
                return self.count("full")
            self.expect(status, 200, answer)
            if answer["usage"]["prompt_tokens"] <= before:
                raise Wrong(f"a call's tokens vanished: {before}, {answer['usage']}")
            self.answered(identity, new, answer)
            self.count("tool results")
        assert turns is self.known[identity][0]

    def cancel(self, identity):
        new = [{"role": "user", "content": text(self.rng)}]
        body = {"conversation": identity, "messages": new, "max_tokens": 200, "ignore_eos": True}
        received = self.client.cancelled(body, self.rng.randint(1, 10))
        if received is None:
            return self.count("full")
        # The server notices that the client is gone when it next writes.
        while self.client.request("POST", f"{BASE}/{identity}/rewind", {})[0] == 409:
            time.sleep(0.01)
        turns = self.known[identity][0]
        if turns and turns[-1][2]:
            turns[-1][2] = False
        turns += [["user", new[0]["content"], False]]
        now = self.client.request("GET", f"{BASE}/{identity}")[1]["turns"]
        if now[-1]["role"] != "assistant" or not now[-1]["content"].startswith(received.rstrip("\ufffd")):
            raise Wrong(f"received {received!r}, stored {now[-1]}")
        turns.append(["assistant", now[-1]["content"], now[-1]["partial"]])
        self.count("cancelled")

    def cut(self, identity, verb):
        """Cuts at a random place; returns the answer and the turns that must be there."""
        turns, now = self.known[identity][0], self.client.request("GET", f"{BASE}/{identity}")[1]
        kind = self.rng.randrange(3)
        if kind == 0:
            count = self.rng.randint(0, len(turns) + 1)
            status, answer = self.client.request("POST", f"{BASE}/{identity}/{verb}", {"at": {"turn": count}})
            self.expect(status, 200 if count <= len(turns) else 400, answer)
            return (answer, [list(turn) for turn in turns[:count]], None) if status == 200 else None
        if kind == 1:
            at = self.rng.randint(0, now["tokens"])
            status, answer = self.client.request("POST", f"{BASE}/{identity}/{verb}", {"at": {"token": at}})
            self.expect(status, 200, answer)
            kept = [list(turn) for turn, seen in zip(turns, now["turns"]) if seen["end"] <= at]
            start = now["turns"][len(kept) - 1]["end"] if kept else 0
            state = None
            if at > start:
                state = "dangling"
                if kept and len(kept) < len(turns) and turns[len(kept)][0] == "assistant":
                    kept.append(["assistant", answer["turns"][-1]["content"], True])
                    state = None
            return answer, kept, state
        status, answer = self.client.request("POST", f"{BASE}/{identity}/{verb}", {})
        self.expect(status, 200, answer)
        return answer, [list(turn) for turn in turns], self.known[identity][1]

    def fork(self, identity):
        cut = self.cut(identity, "fork")
        if cut:
            self.known[cut[0]["id"]] = [cut[1], cut[2]]
            self.compare(cut[0]["id"])
            self.count("forked")

    def rewind(self, identity):
        cut = self.cut(identity, "rewind")
        if cut:
            self.known[identity] = [cut[1], cut[2]]
            self.count("rewound")

    def delete(self, identity):
        if self.rng.random() < 0.3:
            self.expect(self.client.request("DELETE", f"{BASE}/{identity}")[0], 200, identity)
            del self.known[identity]
            self.expect(self.client.request("GET", f"{BASE}/{identity}")[0], 404, identity)
            self.count("deleted")

    def keep(self, identity):
        if self.rng.random() < 0.2:
            self.expect(self.client.request("POST", f"{BASE}/{identity}/keep", {})[0], 200, identity)
            for other in list(self.known):
                status, _ = self.client.request("GET", f"{BASE}/{other}")
                if status == 404:
                    del self.known[other]
            if identity not in self.known:
                raise Wrong("the conversation that was kept is gone")
            self.count("kept")

    def together(self, identity):
        """Several chats at once: one or more run one after the other, the others are refused, and none is mixed with another."""
        results = []

        def ask(number):
            new = [{"role": "user", "content": f"{number} " + text(random.Random(number))}]
            body = {"conversation": identity, "messages": new, "max_tokens": 6, "temperature": 0}
            try:
                status, answer = Client(self.address).request("POST", CHAT, body)
                results.append((status, new, answer))
            except Exception as error:
                results.append((599, new, str(error)))

        threads = [threading.Thread(target=ask, args=(self.rng.randrange(1000),)) for _ in range(3)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        ran = [(new, answer) for status, new, answer in results if status == 200]
        for status, _, answer in results:
            if status not in (200, 409, 429) and not self.is_full(status, answer):
                raise Wrong(f"{status}: {answer}")
        # They ran in the order in which the conversation has their messages.
        turns = self.client.request("GET", f"{BASE}/{identity}")[1]["turns"]
        places = {turn["content"]: index for index, turn in enumerate(turns) if turn["role"] == "user"}
        for new, answer in sorted(ran, key=lambda pair: places[pair[0][0]["content"]]):
            self.answered(identity, new, answer)
        self.count("together")

    def compare(self, identity):
        status, now = self.client.request("GET", f"{BASE}/{identity}")
        self.expect(status, 200, now)
        turns, _ = self.known[identity]
        if self.known[identity][1] == "dangling" and len(now["turns"]) != 0 and now["turns"][-1]["end"] == now["tokens"]:
            self.known[identity][1] = None
        found = [[turn["role"], turn["content"], turn["partial"]] for turn in now["turns"]]
        if found != turns:
            raise Wrong(f"{identity} holds\n{json.dumps(found)}\nand must hold\n{json.dumps(turns)}")
        end = 0
        for turn in now["turns"]:
            if turn["end"] != end + turn["tokens"]:
                raise Wrong(f"the tokens of turns do not add up: {now}")
            end = turn["end"]
        if end > now["tokens"]:
            raise Wrong(f"turns have more tokens than the conversation: {now}")
        self.count("compared")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", required=True)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    until = time.time() + arguments.minutes * 60
    workers = [Worker(arguments.address, arguments.seed * 1000 + n, until) for n in range(arguments.clients)]
    [worker.start() for worker in workers]
    while any(worker.is_alive() for worker in workers):
        time.sleep(0.2)
        os.kill(arguments.pid, 0)
        if any(worker.failure for worker in workers):
            break
    totals = {}
    for worker in workers:
        for what, count in worker.counts.items():
            totals[what] = totals.get(what, 0) + count
    print(json.dumps(totals, indent=1, sort_keys=True))
    failures = [worker.failure for worker in workers if worker.failure]
    for failure in failures:
        print(f"{type(failure).__name__}: {failure}", file=sys.stderr)
    os.kill(arguments.pid, 0)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
