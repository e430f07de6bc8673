"""Proves that the unmodified clients of OpenAI and Anthropic work with kvark serve.

python check_clients.py ADDRESS ADDRESS_WITH_KEY KEY, or `cargo xtask check-serve`, which starts both servers.
"""

import json
import sys
import traceback

import anthropic
import openai
from pydantic import BaseModel

ADDRESS, KEYED_ADDRESS, KEY = sys.argv[1:4]
client = openai.OpenAI(base_url=f"{ADDRESS}/v1", api_key="none", max_retries=0)
claude = anthropic.Anthropic(base_url=ADDRESS, api_key="none", max_retries=0)
MODEL = client.models.list().data[0].id
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
# The client of Anthropic has no argument for it.
CLAUDE_GREEDY = {"extra_body": {"temperature": 0}}
GREEDY = {"model": MODEL, "temperature": 0, "max_tokens": 16}
WEATHER_PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather in a city", "parameters": WEATHER_PARAMETERS},
}
WEATHER_QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
CHECKS = []


def check(function):
    """Adds a function to the list of checks."""
    CHECKS.append(function)
    return function


def raises(kind, call):
    """Calls, and returns the error, which must be of this class and no other."""
    try:
        call()
    except openai.OpenAIError as error:
        assert type(error) is kind, f"{type(error)}: {error}"
        return error
    except anthropic.AnthropicError as error:
        assert type(error) is kind, f"{type(error)}: {error}"
        return error
    raise AssertionError(f"no {kind.__name__}")


@check
def models():
    assert client.models.retrieve(MODEL).id == MODEL
    raises(openai.NotFoundError, lambda: client.models.retrieve("gpt-9"))


@check
def chat():
    answer = client.chat.completions.create(messages=CAPITAL, **GREEDY)
    choice = answer.choices[0]
    assert "Paris" in choice.message.content and choice.message.role == "assistant", choice
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert 1 <= answer.usage.completion_tokens <= 16


@check
def parts_of_text_are_one_text():
    parts = [{"role": "user", "content": [{"type": "text", "text": CAPITAL[0]["content"]}]}]
    one = client.chat.completions.create(messages=CAPITAL, **GREEDY)
    other = client.chat.completions.create(messages=parts, **GREEDY)
    assert one.choices[0].message.content == other.choices[0].message.content


@check
def streaming():
    whole = client.chat.completions.create(messages=CAPITAL, **GREEDY)
    stream = client.chat.completions.create(
        messages=CAPITAL, stream=True, stream_options={"include_usage": True}, **GREEDY
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    with client.chat.completions.stream(messages=CAPITAL, **GREEDY) as helper:
        final = helper.get_final_completion()
    assert final.choices[0].message.content == text


@check
def a_stream_that_is_closed_early():
    stream = client.chat.completions.create(messages=CAPITAL, model=MODEL, stream=True, max_tokens=500)
    next(iter(stream))
    stream.close()


@check
def required_tool():
    answer = client.chat.completions.create(
        messages=WEATHER_QUESTION, tools=[WEATHER], tool_choice="required", **{**GREEDY, "max_tokens": 60}
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls", choice
    call = choice.message.tool_calls[0]
    assert call.function.name == "weather" and isinstance(json.loads(call.function.arguments)["city"], str)
    messages = [
        *WEATHER_QUESTION,
        choice.message,
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    after = client.chat.completions.create(messages=messages, tools=[WEATHER], **GREEDY)
    assert after.choices[0].message.content
    named = {"type": "function", "function": {"name": "weather"}}
    stream = client.chat.completions.create(
        messages=WEATHER_QUESTION, tools=[WEATHER], tool_choice=named, stream=True, **{**GREEDY, "max_tokens": 60}
    )
    deltas = [chunk.choices[0].delta for chunk in stream if chunk.choices]
    calls = [call for delta in deltas for call in delta.tool_calls or []]
    assert calls[0].function.name == "weather" and calls[0].id
    assert json.loads("".join(call.function.arguments or "" for call in calls))


@check
def automatic_tool():
    answer = client.chat.completions.create(
        messages=WEATHER_QUESTION, tools=[WEATHER], tool_choice="auto", **{**GREEDY, "max_tokens": 60}
    )
    message = answer.choices[0].message
    # A small model may answer in words; what it calls must be a tool with arguments in JSON.
    assert message.content or message.tool_calls
    for call in message.tool_calls or []:
        assert call.function.name == "weather"
        json.loads(call.function.arguments)
    without = client.chat.completions.create(
        messages=WEATHER_QUESTION, tools=[WEATHER], tool_choice="none", **GREEDY
    )
    assert not without.choices[0].message.tool_calls and without.choices[0].message.content


class Person(BaseModel):
    """What the schema checks ask for."""

    name: str
    age: int
    likes_tea: bool


@check
def json_schema():
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        messages=[{"role": "user", "content": "Describe a person."}],
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}},
        **{**GREEDY, "max_tokens": 80},
    )
    person = json.loads(answer.choices[0].message.content)
    assert set(person) == {"name", "age"} and 0 <= person["age"] <= 130, person
    answer = client.chat.completions.create(
        messages=[{"role": "user", "content": "A short JSON object."}],
        response_format={"type": "json_object"},
        **{**GREEDY, "max_tokens": 200},
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)


@check
def parse_helpers():
    messages = [{"role": "user", "content": "Ann is 31 years old and likes tea. Describe her."}]
    answer = client.chat.completions.parse(
        messages=messages, response_format=Person, **{**GREEDY, "max_tokens": 120}
    )
    assert isinstance(answer.choices[0].message.parsed, Person), answer.choices[0].message
    response = client.responses.parse(
        model=MODEL, input=messages, text_format=Person, temperature=0, max_output_tokens=120
    )
    assert response.output_parsed == answer.choices[0].message.parsed, response.output_text


@check
def parse_helper_with_a_tool():
    tool = openai.pydantic_function_tool(Person, name="describe")
    answer = client.chat.completions.parse(
        messages=[{"role": "user", "content": "Ann is 31 years old and likes tea."}],
        tools=[tool],
        tool_choice="required",
        **{**GREEDY, "max_tokens": 120},
    )
    call = answer.choices[0].message.tool_calls[0]
    assert isinstance(call.function.parsed_arguments, Person), call


@check
def embeddings():
    # The client asks for base64 unless told otherwise.
    texts = ["a cat", "a kitten", "the stock exchange"]
    compact = client.embeddings.create(model=MODEL, input=texts)
    plain = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    assert len(compact.data) == 3 and [item.index for item in compact.data] == [0, 1, 2]
    for one, other in zip(compact.data, plain.data, strict=True):
        assert len(one.embedding) == len(other.embedding) > 100
        assert max(abs(a - b) for a, b in zip(one.embedding, other.embedding, strict=True)) < 1e-6
    single = client.embeddings.create(model=MODEL, input="a cat")
    assert max(abs(a - b) for a, b in zip(single.data[0].embedding, compact.data[0].embedding, strict=True)) < 1e-6


@check
def logprobs():
    answer = client.chat.completions.create(messages=CAPITAL, logprobs=True, top_logprobs=3, **GREEDY)
    entries = answer.choices[0].logprobs.content
    assert entries and "".join(entry.token for entry in entries).startswith(answer.choices[0].message.content[:8])
    for entry in entries:
        assert len(entry.top_logprobs) == 3 and entry.logprob <= 0
        assert entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob
        assert entry.top_logprobs[0].token == entry.token, "greedy"


@check
def responses():
    response = client.responses.create(
        model=MODEL, input=CAPITAL[0]["content"], temperature=0, max_output_tokens=16
    )
    chat = client.chat.completions.create(messages=CAPITAL, **GREEDY)
    assert response.output_text == chat.choices[0].message.content
    assert response.status in ("completed", "incomplete")
    assert response.usage.output_tokens == chat.usage.completion_tokens
    events = list(
        client.responses.create(
            model=MODEL, input=CAPITAL, instructions="Be brief.", temperature=0, max_output_tokens=16, stream=True
        )
    )
    assert events[0].type == "response.created", events[0]
    assert events[-1].type in ("response.completed", "response.incomplete")
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text and text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    with client.responses.stream(
        model=MODEL, input=CAPITAL, temperature=0, max_output_tokens=16
    ) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == response.output_text


@check
def responses_with_state():
    first = client.responses.create(model=MODEL, input="My name is Ada.", max_output_tokens=8, temperature=0)
    again = client.responses.retrieve(first.id)
    assert again.output_text == first.output_text and again.status == first.status
    second = client.responses.create(
        model=MODEL, input="What is my name?", previous_response_id=first.id, max_output_tokens=8, temperature=0
    )
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 1, second.usage
    items = client.responses.input_items.list(second.id, order="asc")
    assert [item.role for item in items] == ["user", "assistant", "user"]
    count = client.responses.input_tokens.count(model=MODEL, input="What is my name?", previous_response_id=first.id)
    assert count.input_tokens == second.usage.input_tokens
    client.responses.delete(first.id)
    raises(openai.NotFoundError, lambda: client.responses.retrieve(first.id))


@check
def responses_with_a_tool():
    tool = {"type": "function", "strict": True, **WEATHER["function"]}
    response = client.responses.create(
        model=MODEL, input=WEATHER_QUESTION, tools=[tool], tool_choice="required", temperature=0, max_output_tokens=60
    )
    call = next(item for item in response.output if item.type == "function_call")
    assert call.name == "weather" and json.loads(call.arguments)["city"]
    after = client.responses.create(
        model=MODEL,
        input=[
            *WEATHER_QUESTION,
            *response.output,
            {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
        ],
        tools=[tool],
        temperature=0,
        max_output_tokens=16,
    )
    assert after.output


@check
def completions():
    answer = client.completions.create(prompt="The capital of France is", **GREEDY)
    assert "Paris" in answer.choices[0].text, answer
    stream = client.completions.create(prompt="The capital of France is", stream=True, **GREEDY)
    assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == answer.choices[0].text
    scored = client.completions.create(prompt="The capital of France is", logprobs=2, **GREEDY)
    assert len(scored.choices[0].logprobs.tokens) == scored.usage.completion_tokens
    echoed = client.completions.create(prompt="The capital of France is", echo=True, **GREEDY)
    assert echoed.choices[0].text == "The capital of France is" + answer.choices[0].text


@check
def lists_of_prompts():
    prompts = ["The capital of France is", "One, two, three,"]
    alone = [client.completions.create(prompt=prompt, **GREEDY).choices[0].text for prompt in prompts]
    together = client.completions.create(prompt=prompts, **GREEDY)
    assert [choice.text for choice in together.choices] == alone
    echoed = client.completions.create(model=MODEL, prompt=prompts[0], max_tokens=1, temperature=0, echo=True, logprobs=1)
    logprobs = echoed.choices[0].logprobs
    assert logprobs.token_logprobs[0] is None and all(p <= 0 for p in logprobs.token_logprobs[1:])
    assert "".join(logprobs.tokens) == echoed.choices[0].text
    best = client.completions.create(model=MODEL, prompt=prompts[0], max_tokens=4, best_of=3, n=1)
    assert len(best.choices) == 1


@check
def prediction_and_prefill():
    question = [{"role": "user", "content": "Count from one to ten in words."}]
    plain = client.chat.completions.create(messages=question, model=MODEL, temperature=0, max_tokens=24)
    text = plain.choices[0].message.content
    predicted = client.chat.completions.create(
        messages=question, model=MODEL, temperature=0, max_tokens=24, prediction={"type": "content", "content": text}
    )
    assert predicted.choices[0].message.content == text
    begun = [*CAPITAL, {"role": "assistant", "content": "The city of"}]
    one = client.chat.completions.create(messages=begun, **GREEDY).choices[0].message.content
    other = claude.messages.create(model=MODEL, messages=begun, max_tokens=16, **CLAUDE_GREEDY)
    assert other.content[0].text == one


@check
def several_choices():
    options = {**GREEDY, "temperature": 1.2, "seed": 5}
    answer = client.chat.completions.create(
        messages=[{"role": "user", "content": "Invent a name."}], n=3, **options
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1
    stream = client.chat.completions.create(
        messages=[{"role": "user", "content": "Invent a name."}], n=3, stream=True, **options
    )
    texts = ["", "", ""]
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in answer.choices]


@check
def stop():
    whole = client.chat.completions.create(messages=CAPITAL, **GREEDY).choices[0].message.content
    cut = client.chat.completions.create(messages=CAPITAL, stop=["France"], **GREEDY).choices[0]
    assert "France" in whole and cut.message.content == whole.split("France")[0], (whole, cut)
    assert cut.finish_reason == "stop"


@check
def seed():
    def name(seed):
        answer = client.chat.completions.create(
            messages=[{"role": "user", "content": "Invent a story."}],
            **{**GREEDY, "temperature": 1.0, "seed": seed, "max_tokens": 24},
        )
        return answer.choices[0].message.content

    assert name(1) == name(1)
    assert len({name(seed) for seed in range(4)}) > 1


@check
def logit_bias():
    plain = client.chat.completions.create(messages=CAPITAL, logprobs=True, **{**GREEDY, "max_tokens": 1})
    word = plain.choices[0].message.content
    ids = client.post("../tokenize", body={"content": word}, cast_to=dict)["tokens"]
    banned = client.chat.completions.create(
        messages=CAPITAL, logit_bias={str(ids[0]): -100}, **{**GREEDY, "max_tokens": 1}
    )
    assert banned.choices[0].message.content != word


@check
def errors():
    unknown = raises(
        openai.BadRequestError,
        lambda: client.chat.completions.create(messages=CAPITAL, extra_body={"temprature": 1}, **GREEDY),
    )
    assert unknown.param == "temprature" and unknown.code == "unknown_parameter", unknown
    unsupported = raises(
        openai.BadRequestError,
        lambda: client.chat.completions.create(messages=CAPITAL, modalities=["audio"], **GREEDY),
    )
    assert unsupported.param == "modalities"
    # The only model of a server answers under every name.
    other = client.chat.completions.create(messages=CAPITAL, **{**GREEDY, "model": "gpt-9"})
    assert other.model == MODEL and "Paris" in other.choices[0].message.content
    long = raises(
        openai.BadRequestError,
        lambda: client.chat.completions.create(messages=[{"role": "user", "content": "word " * 5000}], **GREEDY),
    )
    assert long.code == "context_length_exceeded"
    raises(
        anthropic.BadRequestError,
        lambda: claude.messages.create(model=MODEL, messages=CAPITAL, max_tokens=4, extra_body={"temprature": 1}),
    )


@check
def keys():
    wrong = openai.OpenAI(base_url=f"{KEYED_ADDRESS}/v1", api_key="wrong", max_retries=0)
    error = raises(openai.AuthenticationError, lambda: wrong.chat.completions.create(messages=CAPITAL, **GREEDY))
    assert error.code == "invalid_api_key"
    raises(openai.AuthenticationError, wrong.models.list)
    right = openai.OpenAI(base_url=f"{KEYED_ADDRESS}/v1", api_key=KEY, max_retries=0)
    assert right.chat.completions.create(messages=CAPITAL, **GREEDY).choices[0].message.content
    wrong = anthropic.Anthropic(base_url=KEYED_ADDRESS, api_key="wrong", max_retries=0)
    error = raises(
        anthropic.AuthenticationError,
        lambda: wrong.messages.create(model=MODEL, messages=CAPITAL, max_tokens=4),
    )
    assert error.body["type"] == "error" and error.body["error"]["type"] == "authentication_error", error.body
    right = anthropic.Anthropic(base_url=KEYED_ADDRESS, api_key=KEY, max_retries=0)
    assert right.messages.create(model=MODEL, messages=CAPITAL, max_tokens=4).content


@check
def messages():
    message = claude.messages.create(
        model=MODEL, messages=CAPITAL, max_tokens=16, **CLAUDE_GREEDY
    )
    assert "Paris" in message.content[0].text and message.role == "assistant"
    assert message.stop_reason in ("end_turn", "max_tokens") and message.usage.output_tokens <= 16
    chat = client.chat.completions.create(messages=CAPITAL, **GREEDY)
    assert chat.choices[0].message.content == message.content[0].text
    with claude.messages.stream(model=MODEL, messages=CAPITAL, max_tokens=16, **CLAUDE_GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == message.content[0].text == final.content[0].text
    assert final.stop_reason == message.stop_reason and final.usage.output_tokens == message.usage.output_tokens
    system = claude.messages.create(
        model=MODEL,
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages=[{"role": "user", "content": [{"type": "text", "text": "What is 2 + 2?"}]}],
        max_tokens=8,
        stop_sequences=["~~"],
    )
    assert system.content
    cut = claude.messages.create(
        model=MODEL, messages=CAPITAL, max_tokens=16, **CLAUDE_GREEDY, stop_sequences=["France"]
    )
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", "France"), cut


@check
def message_tools():
    tool = {"name": "weather", "description": "The weather in a city", "input_schema": WEATHER_PARAMETERS}
    options = {"model": MODEL, "tools": [tool], "max_tokens": 60, **CLAUDE_GREEDY}
    message = claude.messages.create(messages=WEATHER_QUESTION, tool_choice={"type": "any"}, **options)
    assert message.stop_reason == "tool_use", message
    call = next(block for block in message.content if block.type == "tool_use")
    assert call.name == "weather" and isinstance(call.input["city"], str)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]}
    after = claude.messages.create(
        messages=[
            *WEATHER_QUESTION,
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": [result]},
        ],
        **options,
    )
    assert after.content
    with claude.messages.stream(
        messages=WEATHER_QUESTION, tool_choice={"type": "tool", "name": "weather"}, **options
    ) as stream:
        final = stream.get_final_message()
    assert final.content[-1].input == call.input
    automatic = claude.messages.create(messages=WEATHER_QUESTION, tool_choice={"type": "auto"}, **options)
    assert automatic.content


@check
def twenty_turns_are_cached():
    history = [{"role": "system", "content": "You are a careful assistant. " * 10}]
    before = 0
    for turn in range(20):
        history.append({"role": "user", "content": f"Say the number {turn}."})
        answer = client.chat.completions.create(messages=history, **{**GREEDY, "max_tokens": 8})
        cached = answer.usage.prompt_tokens_details.cached_tokens
        assert cached >= before, f"turn {turn}: {cached} cached, the last prompt had {before}"
        before = answer.usage.prompt_tokens
        history.append({"role": "assistant", "content": answer.choices[0].message.content})
    turns = []
    before = 0
    for turn in range(20):
        turns.append({"role": "user", "content": f"Name the letter after {chr(97 + turn)}."})
        message = claude.messages.create(
            model=MODEL, system="You are a patient teacher. " * 10, messages=turns, max_tokens=8, **CLAUDE_GREEDY
        )
        usage = message.usage
        assert usage.cache_read_input_tokens >= before, (turn, usage, before)
        before = usage.input_tokens + usage.cache_read_input_tokens
        turns.append({"role": "assistant", "content": message.content})


def main():
    failed = 0
    for function in CHECKS:
        try:
            function()
            print(f"ok      {function.__name__}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED  {function.__name__}\n{traceback.format_exc()}", flush=True)
    print(f"{len(CHECKS) - failed} of {len(CHECKS)} checks passed, openai {openai.__version__}, "
          f"anthropic {anthropic.__version__}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
