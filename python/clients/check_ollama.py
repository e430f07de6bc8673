"""Proves that the unmodified clients of Ollama work with kvark serve: ollama and langchain-ollama.

python check_ollama.py ADDRESS, or `cargo xtask check-serve`, which starts the server.
"""

import asyncio
import os
import sys
import traceback
from datetime import datetime, timezone
from importlib.metadata import version

ADDRESS = sys.argv[1]
# The clients find the server by this variable, as the command of Ollama does.
os.environ["OLLAMA_HOST"] = ADDRESS

import ollama
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from pydantic import BaseModel

MODEL = ollama.list().models[0].model
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"temperature": 0, "num_predict": 16}
CHECKS = []


class City(BaseModel):
    """A city, as a format."""

    city: str


def weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: The name of the city
    """
    return f"sunny in {city}"


WEATHER_CALL = {
    "type": "object",
    "properties": {
        "name": {"const": "weather"},
        "arguments": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "arguments"],
    "additionalProperties": False,
}


def check(function):
    """Adds a function to the list of checks."""
    CHECKS.append(function)
    return function


def raises(call, status, *words):
    """Calls, and checks the error of the server."""
    try:
        call()
    except ollama.ResponseError as error:
        assert error.status_code == status, error
        assert all(word in error.error for word in words), error
        return
    raise AssertionError("no error")


@check
def models():
    listed = ollama.list().models[0]
    assert listed.size > 0 and len(listed.digest) == 64 and listed.details.format == "gguf", listed
    shown = ollama.show(MODEL)
    assert "completion" in shown.capabilities and shown.modelinfo["general.architecture"], shown
    assert ollama.show(f"{MODEL}:latest").details == shown.details
    running = ollama.ps().models[0]
    assert running.model == MODEL and running.expires_at > datetime.now(timezone.utc), running


@check
def chat():
    answer = ollama.chat(MODEL, CAPITAL, options=GREEDY)
    assert "Paris" in answer.message.content and answer.done, answer
    assert answer.done_reason in ("stop", "length")
    assert 1 <= answer.eval_count <= 16 and answer.prompt_eval_count > 5
    assert answer.total_duration >= answer.eval_duration > 0


@check
def streaming():
    whole = ollama.chat(MODEL, CAPITAL, options=GREEDY).message.content
    parts = list(ollama.chat(MODEL, CAPITAL, options=GREEDY, stream=True))
    assert "".join(part.message.content for part in parts) == whole
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]


@check
def asynchronous():
    async def ask():
        client = ollama.AsyncClient()
        parts = await client.chat(MODEL, CAPITAL, options=GREEDY, stream=True)
        return "".join([part.message.content async for part in parts])

    assert "Paris" in asyncio.run(ask())


@check
def generate():
    answer = ollama.generate(MODEL, CAPITAL[0]["content"], options=GREEDY)
    assert answer.response == ollama.chat(MODEL, CAPITAL, options=GREEDY).message.content
    after = ollama.generate(MODEL, "And of Italy?", context=answer.context, options=GREEDY)
    assert after.prompt_eval_count > len(answer.context)
    raw = ollama.generate(MODEL, "The capital of France is", raw=True, options={"temperature": 0, "num_predict": 4})
    assert "Paris" in raw.response and raw.context is None, raw
    parts = list(ollama.generate(MODEL, CAPITAL[0]["content"], options=GREEDY, stream=True))
    assert "".join(part.response for part in parts) == answer.response


@check
def formats():
    options = {**GREEDY, "num_predict": 60}
    answer = ollama.chat(MODEL, CAPITAL, format=City.model_json_schema(), options=options)
    assert City.model_validate_json(answer.message.content).city
    assert ollama.chat(MODEL, CAPITAL, format="json", options=GREEDY).message.content.startswith("{")


@check
def tools():
    options = {**GREEDY, "num_predict": 60}
    answer = ollama.chat(MODEL, CAPITAL, tools=[weather], format=WEATHER_CALL, options=options)
    call = answer.message.tool_calls[0].function
    assert call.name == "weather" and isinstance(call.arguments["city"], str), call
    result = {"role": "tool", "tool_name": "weather", "content": weather(**call.arguments)}
    after = ollama.chat(MODEL, [*CAPITAL, answer.message, result], tools=[weather], options=GREEDY)
    assert after.message.content is not None and after.prompt_eval_count > answer.prompt_eval_count


@check
def log_probabilities():
    answer = ollama.chat(MODEL, CAPITAL, logprobs=True, top_logprobs=2, options=GREEDY)
    assert len(answer.logprobs) == answer.eval_count
    assert answer.logprobs[0].top_logprobs[0].token == answer.logprobs[0].token


@check
def vectors():
    answer = ollama.embed(MODEL, ["A river.", "A mountain."])
    assert len(answer.embeddings) == 2
    assert ollama.embeddings(MODEL, "A river.").embedding == answer.embeddings[0]
    short = ollama.embed(MODEL, "A river.", dimensions=16).embeddings[0]
    assert len(short) == 16


@check
def what_cannot_be_done_is_refused():
    raises(lambda: ollama.chat("no-such-model", CAPITAL), 404, "no-such-model")
    raises(lambda: ollama.chat(MODEL, CAPITAL, options={"num_ctx": 10**6}), 400, "num_ctx")
    raises(lambda: ollama.chat(MODEL, CAPITAL, think=True), 400, "thinking")
    raises(lambda: ollama.generate(MODEL, "a", suffix="b"), 400, "suffix")
    raises(lambda: ollama.pull("no-such-model"), 404, "no-such-model")
    raises(lambda: list(ollama.pull("no-such-model", stream=True)), -1, "no-such-model")
    raises(lambda: ollama.delete(MODEL), 400, "kvark rm")
    raises(lambda: ollama.copy(MODEL, "other"), 400, "copy")
    raises(lambda: ollama.create("other", from_=MODEL), 400, "create")
    raises(lambda: ollama.push(MODEL), 400, "push")


@check
def pull_of_a_served_model():
    assert ollama.pull(MODEL).status == "success"
    assert [part.status for part in ollama.pull(MODEL, stream=True)][-1] == "success"


@check
def keep_alive():
    unloaded = ollama.generate(MODEL, keep_alive=0)
    assert unloaded.done_reason == "unload" and not ollama.ps().models
    loaded = ollama.generate(MODEL, keep_alive="5m")
    assert loaded.done_reason == "load"
    assert (ollama.ps().models[0].expires_at - datetime.now(timezone.utc)).total_seconds() < 301
    ollama.generate(MODEL, keep_alive=-1)


LANGCHAIN = {"model": MODEL, "temperature": 0, "num_predict": 16}


@check
def langchain_chat():
    chat = ChatOllama(**LANGCHAIN, validate_model_on_init=True)
    messages = [SystemMessage("Be brief."), HumanMessage(CAPITAL[0]["content"])]
    answer = chat.invoke(messages)
    assert "Paris" in answer.content and answer.usage_metadata["output_tokens"] >= 1, answer
    assert answer.response_metadata["done"]
    parts = list(chat.stream(messages))
    assert "".join(part.content for part in parts) == answer.content


@check
def langchain_structured_output_and_tools():
    chat = ChatOllama(**{**LANGCHAIN, "num_predict": 60})
    city = chat.with_structured_output(City, method="json_schema").invoke(CAPITAL[0]["content"])
    assert isinstance(city, City), city
    offered = chat.bind_tools([tool(weather)], format=WEATHER_CALL)
    answer = offered.invoke(CAPITAL[0]["content"])
    call = answer.tool_calls[0]
    assert call["name"] == "weather", answer
    result = ToolMessage(weather(**call["args"]), tool_call_id=call["id"], name="weather")
    after = chat.bind_tools([tool(weather)]).invoke([HumanMessage("The weather?"), answer, result])
    assert after.usage_metadata["input_tokens"] > 0


@check
def langchain_completions_and_vectors():
    assert OllamaLLM(**LANGCHAIN).invoke(CAPITAL[0]["content"])
    vectors = OllamaEmbeddings(model=MODEL).embed_documents(["A river.", "A mountain."])
    assert len(vectors) == 2 and len(vectors[0]) > 100
    try:
        ChatOllama(model="no-such-model").invoke("Hi")
    except ollama.ResponseError as error:
        assert "no-such-model" in error.error
    else:
        raise AssertionError("no error")


def main():
    failed = 0
    for function in CHECKS:
        try:
            function()
            print(f"ok      {function.__name__}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED  {function.__name__}\n{traceback.format_exc()}", flush=True)
    print(f"{len(CHECKS) - failed} of {len(CHECKS)} checks passed, ollama {version('ollama')}, "
          f"langchain-ollama {version('langchain-ollama')}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
