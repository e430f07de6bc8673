"""Proves on the counters of kvark serve that chats with a model that has recurrent layers compute no earlier turn again. The client is the
unmodified one of OpenAI, and every request has the whole history.

python check_hybrid.py ADDRESS, or `cargo xtask check-serve`, which starts the server.
"""

import sys

import openai

client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
MODEL = client.models.list().data[0].id


def sentence(n):
    return f"Message {n} asks for {37 * n + 11} things, and says so at length."


def ask(messages):
    """Appends an answer. Returns the cached tokens and those that the cache holds afterwards: the last token of an answer is fed by the
    next turn."""
    # Letters have the tokens that were generated when they come back as text.
    reply = client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=24, temperature=1, seed=3, extra_body={"regex": "[a-z]{8,16}"})
    messages.append({"role": "assistant", "content": reply.choices[0].message.content})
    usage = reply.usage
    return usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens + usage.completion_tokens - 1


def user(n):
    return {"role": "user", "content": sentence(n)}


def main():
    messages = [{"role": "system", "content": sentence(100)}]
    held = [0]
    for turn in range(10):
        messages.append(user(turn))
        cached, after = ask(messages)
        assert cached >= held[-1], f"turn {turn}: {cached} of {held[-1]} tokens of earlier turns were cached"
        held.append(after)
    print(f"ten turns: 0 of {held[9]} tokens of earlier turns computed again")

    edited = messages[:-2] + [{"role": "user", "content": "Something else."}]
    cached, _ = ask(edited)
    assert cached >= held[9], f"edit: {cached} of {held[9]}"
    print("an edited last message: no token before it computed again")

    branch = messages[:10]
    for turn in range(20, 23):
        branch.append(user(turn))
        ask(branch)
    messages.append(user(10))
    cached, _ = ask(messages)
    assert cached >= held[10], f"return: {cached} of {held[10]}"
    print("back from a sub-agent's branch: 0 tokens computed again")


if __name__ == "__main__":
    main()
