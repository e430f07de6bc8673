"""Agent patterns on kvark's branches, with the plain openai client.

Start a server (kvark serve), then: python agent.py [ADDRESS]
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from urllib.request import Request, urlopen

from openai import OpenAI

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
client = OpenAI(base_url=f"{ADDRESS}/v1", api_key="none")
MODEL = client.models.list().data[0].id


def kvark(method, path, body=None):
    """Calls a path that only kvark has."""
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(f"{ADDRESS}/v1/kvark/{path}", data, method=method)) as answer:
        return json.load(answer)


def begin(system):
    return kvark("POST", "conversations", {"messages": [{"role": "system", "content": system}]})["id"]


def fork(conversation, **at):
    return kvark("POST", f"conversations/{conversation}/fork", at)["id"]


def say(conversation, text, **options):
    """One turn of a conversation."""
    return client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": text}],
        extra_body={"conversation": conversation},
        max_tokens=options.pop("max_tokens", 40),
        **options,
    )


def best_of(conversation, question, n, score):
    """Answers on n forks, keeps the best one and deletes the others."""
    forks = [fork(conversation) for _ in range(n)]
    with ThreadPoolExecutor(n) as pool:
        answers = list(pool.map(lambda pair: say(pair[1], question, seed=pair[0]), enumerate(forks)))
    texts = [answer.choices[0].message.content for answer in answers]
    best = max(range(n), key=lambda i: score(texts[i]))
    kvark("POST", f"conversations/{forks[best]}/keep")
    return forks[best], texts[best]


def call_tool(conversation, question, tool, run, attempts=3):
    """Asks for a tool call; a call that fails is taken back and asked for again."""
    before = kvark("GET", f"conversations/{conversation}")["tokens"]
    for attempt in range(attempts):
        answer = say(conversation, question, tools=[tool], tool_choice="required", seed=attempt)
        calls = answer.choices[0].message.tool_calls
        try:
            return run(**json.loads(calls[0].function.arguments))
        except (TypeError, ValueError) as error:
            print(f"  attempt {attempt}: {error}")
            kvark("POST", f"conversations/{conversation}/rewind", {"at": {"token": before}})
    return None


def sub_agents(conversation, tasks):
    """Every task on a fork of its own: the system prompt is computed once."""

    def work(task):
        answer = say(fork(conversation), task, temperature=0)
        return answer.choices[0].message.content, answer.usage.prompt_tokens_details.cached_tokens

    with ThreadPoolExecutor(len(tasks)) as pool:
        return list(pool.map(work, tasks))


def main():
    trunk = begin("You are a helpful assistant. You answer in one short sentence. " * 12)

    print("sub-agents:")
    for text, cached in sub_agents(trunk, ["Name a river.", "Name a lake.", "Name a mountain."]):
        print(f"  {text!r} ({cached} prompt tokens were shared)")

    print("tool call:")
    adder = {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two numbers",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    }

    def add(a, b):
        if (a, b) != (17, 25):
            raise ValueError(f"add({a}, {b}) is not what was asked for")
        return a + b

    print(f"  result: {call_tool(fork(trunk), 'What is 17 + 25? Call add with a=17 and b=25.', adder, add)}")

    print("best of four:")
    kept, text = best_of(trunk, "Describe the sea.", 4, score=len)
    print(f"  {kept}: {text!r}")
    left = kvark("GET", "conversations")["data"]
    print(f"  conversations left: {[conversation['id'] for conversation in left]}")


if __name__ == "__main__":
    main()
