"""Sessions, branches and generations that continue, end early and close. KVARK_TEST_MODEL names the default model's file."""

import inspect
import json
import os
import pickle
import signal
import subprocess
import sys

import pytest

try:
    import kvark
    import numpy as np
except ModuleNotFoundError as error:
    if error.name not in ("kvark", "numpy"):
        raise
    pytest.skip(f"{error.name} is not installed (pip install .)", allow_module_level=True)

PROMPT = "Once upon a time"
GREEDY = {"temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="session")
def path():
    path = os.environ.get("KVARK_TEST_MODEL")
    if not path:
        pytest.skip("KVARK_TEST_MODEL is not set")
    return path


@pytest.fixture(scope="session")
def model(path):
    return kvark.Model(path, context=1024, threads=2)


def whole(model, count=12):
    return model.session().generate(PROMPT, max_tokens=count, **GREEDY).result()


def test_two_calls_generate_what_one_generates(model):
    expected = whole(model)
    session = model.session()
    first = session.generate(PROMPT, max_tokens=6, **GREEDY).result()
    second = session.generate(max_tokens=6, **GREEDY).result()
    assert first.tokens + second.tokens == expected.tokens
    assert first.text + second.text == expected.text
    assert session.tokens[-12:] == expected.tokens
    # What is fed after a generation follows its last token, and the logits are those after it.
    cold = model.session()
    cold.feed(session.tokens)
    assert (session.logits() == cold.logits()).all()
    session = model.session()
    session.generate(PROMPT, max_tokens=6, **GREEDY).result()
    session.feed([17])
    cold = model.session()
    cold.feed(session.tokens)
    assert session.tokens[-1] == 17 and (session.logits() == cold.logits()).all()


def test_a_saved_session_has_the_last_token(model, tmp_path):
    expected = whole(model)
    session = model.session()
    session.generate(PROMPT, max_tokens=6, **GREEDY).result()
    session.save(tmp_path / "six.kvsnap")
    other = model.session()
    other.restore(tmp_path / "six.kvsnap")
    assert other.tokens == session.tokens
    assert session.generate(max_tokens=6, **GREEDY).result().tokens == expected.tokens[6:]


def test_branches_continue(model):
    expected = whole(model)
    branches = model.branches(cells=512)
    trunk = branches.new_branch(PROMPT)
    length = len(trunk)
    [first] = branches.generate([trunk], max_tokens=6, **GREEDY)
    assert trunk.tokens[length:] == first.tokens
    assert trunk.text.endswith(first.text)
    fork = trunk.fork()
    both = branches.generate([trunk, fork], max_tokens=6, **GREEDY)
    assert [first.tokens + second.tokens for second in both] == [expected.tokens] * 2
    fork.rewind(length + 6)
    fork.feed([expected.tokens[6]])
    [rest] = branches.generate([fork], max_tokens=5, **GREEDY)
    assert rest.tokens == expected.tokens[7:]


def test_leaving_a_loop_leaves_the_session_usable(model):
    expected = whole(model)
    session = model.session()
    generation = session.generate(PROMPT, max_tokens=64, **GREEDY)
    start = len(model.tokenize(PROMPT, bos=True))
    for count, _ in enumerate(generation, 1):
        if count == 3:
            break
    # The generation is still referenced. The session holds what was shown, and reading does not end the generation.
    held = session.tokens
    assert held[-3:] == expected.tokens[:3] and len(held) <= start + 4
    assert next(generation)
    # Another operation ends it.
    session.rewind(len(held) - 1)
    assert next(generation, None) is None
    assert generation.result().finish_reason == "interrupted"
    rest = session.generate(held[-1:], max_tokens=9, **GREEDY).result()
    assert rest.tokens == expected.tokens[3:]


@pytest.mark.parametrize("end", ["close", "with", "del"])
def test_a_generation_ends_when_it_is_closed(model, end):
    session = model.session()
    generation = session.generate(PROMPT, max_tokens=64, **GREEDY)
    next(generation)
    if end == "close":
        generation.close()
        assert next(generation, None) is None
    elif end == "with":
        with generation as same:
            next(same)
        assert next(generation, None) is None
    else:
        del generation
    session.feed([1])


def test_closed_things_say_so(path):
    with kvark.Model(path, context=256, threads=2) as model:
        with model.session() as session:
            generation = session.generate(PROMPT, max_tokens=8, **GREEDY)
            next(generation)
        assert generation.result().finish_reason == "interrupted"
        with pytest.raises(kvark.errors.ClosedError, match="session"):
            session.feed([1])
        assert "closed" in repr(session)
        with model.generate(PROMPT, max_tokens=8, **GREEDY) as request:
            next(request)
        assert request.result().text
    with pytest.raises(kvark.errors.ClosedError, match="model"):
        model.generate(PROMPT)
    with pytest.raises(ValueError):
        model.session()
    assert repr(model) == "Model(closed)"


def test_sessions_and_branches_have_the_options_of_the_engine(model):
    plain = model.generate(PROMPT, logprobs=3, max_tokens=24, **GREEDY).result()
    for kind in ("cells", "tree"):
        with model.session(cache=kind) as session:
            found = session.generate(PROMPT, speculation="ngram", logprobs=3, max_tokens=24, **GREEDY).result()
            assert found.tokens == plain.tokens and found.logprobs == plain.logprobs
    with model.session() as session:
        found = session.generate(PROMPT, regex="[0-9]{3}", max_tokens=8, **GREEDY).result()
        assert found.text.isdigit() and len(found.text) == 3 and found.finish_reason == "stop"
        with pytest.raises(kvark.errors.InvalidArgumentError, match="cells or tree"):
            session.generate(PROMPT, speculation="ngram", max_tokens=4)
    with pytest.raises(kvark.errors.InvalidArgumentError, match="contiguous"):
        model.session(cache="heap")
    pool = model.branches(sequences=2)
    one = pool.new_branch(PROMPT)
    two = one.fork()
    both = pool.generate([one, two], speculation="ngram", logprobs=3, max_tokens=12, **GREEDY)
    assert [result.tokens for result in both] == [plain.tokens[:12]] * 2
    assert both[0].logprobs == plain.logprobs[:12]
    numbers = pool.generate([one, two], regex="[0-9]{2}", max_tokens=8, **GREEDY)
    assert all(result.text.isdigit() and len(result.text) == 2 for result in numbers)


def test_options_of_the_engine(model, path):
    options = {"temperature": 1.0, "seed": 5, "max_tokens": 8, "ignore_eos": True}
    several = model.chat("Name a colour.", n=3, **options)
    assert [answer.tokens for answer in several] == [
        model.chat("Name a colour.", **{**options, "seed": seed}).tokens for seed in (5, 6, 7)
    ]
    streams = model.generate(PROMPT, n=2, **options)
    assert len({tuple(stream.result().tokens) for stream in streams}) == 2
    with pytest.raises(kvark.errors.InvalidArgumentError, match="n must"):
        model.generate(PROMPT, n=0)
    scored = model.generate(PROMPT, logprobs=3, max_tokens=4, **GREEDY).result()
    assert [entry["id"] for entry in scored.logprobs] == scored.tokens
    for entry in scored.logprobs:
        assert len(entry["top"]) == 3 and entry["top"][0] == (entry["id"], entry["logprob"])
    assert model.generate(PROMPT, max_tokens=1).result().logprobs is None
    plain = model.generate(PROMPT, max_tokens=24, **GREEDY).result()
    for kind in ("ngram", "auto", True):
        assert model.generate(PROMPT, speculation=kind, max_tokens=24, **GREEDY).result().tokens == plain.tokens
    with pytest.raises(kvark.errors.InvalidArgumentError, match="ngram, draft"):
        model.generate(PROMPT, speculation="magic")
    with pytest.raises(kvark.errors.InvalidArgumentError, match="n"):
        model.session().generate(PROMPT, n=2)
    with pytest.raises(kvark.errors.InvalidArgumentError, match="tools"):
        model.chat("Hello", tools=[{"type": "function"}])
    with pytest.raises(kvark.errors.InvalidArgumentError, match="tools"):
        model.generate(PROMPT, tools=[TOOL])
    with pytest.raises(kvark.errors.InvalidArgumentError, match="nothing"):
        model.chat("Hello", tools=[TOOL], tool_choice="nothing")
    mode = kvark.Model(path, context=128, threads=2, run_mode="none")
    assert mode.generate(PROMPT, max_tokens=6, **GREEDY).result().tokens == plain.tokens[:6]
    with pytest.raises(kvark.errors.InvalidArgumentError, match="piecewise"):
        kvark.Model(path, run_mode="fast")
    draft = kvark.Model(path, context=256, threads=2, draft=path)
    drafted = draft.generate(PROMPT, speculation="draft", max_tokens=12, **GREEDY).result()
    assert drafted.tokens == plain.tokens[:12]
    with pytest.raises(kvark.errors.InvalidArgumentError, match="draft model"):
        model.generate(PROMPT, speculation="draft", max_tokens=2).result()


def test_results_pickle(model):
    for result in (whole(model, 3), model.generate(PROMPT, logprobs=2, max_tokens=3, **GREEDY).result()):
        again = pickle.loads(pickle.dumps(result))
        assert again == result and repr(again) == repr(result)
        assert (again.timings, again.logprobs) == (result.timings, result.logprobs)


def test_wrong_values_are_named(model, path):
    with pytest.raises(kvark.errors.InvalidArgumentError, match="10000000") as error:
        model.detokenize([1, 10**7])
    assert error.value.kind == "UnknownToken"
    with pytest.raises(kvark.errors.InvalidArgumentError, match="context"):
        kvark.Model(path, context=0)
    with pytest.raises(kvark.errors.InvalidArgumentError, match="temprature.*max_tokens, stop"):
        model.generate("x", temprature=1)


def test_one_text_is_embedded(model):
    one = model.embed("a cat")
    assert one.shape[0] == 1 and (one == model.embed(["a cat"])).all()
    raw = model.embed("a cat", normalize=False)
    assert np.linalg.norm(raw) != pytest.approx(1, rel=1e-3)
    assert np.linalg.norm(model.embed("a cat")) == pytest.approx(1, rel=1e-4)


def test_parts_of_a_message(model):
    text = model.apply_chat_template([{"role": "user", "content": "Hello you"}])
    parts = [{"type": "text", "text": "Hello "}, {"type": "text", "text": "you"}]
    assert model.apply_chat_template([{"role": "user", "content": parts}]) == text
    picture = [{"type": "image_url", "image_url": {"url": "x"}}]
    with pytest.raises(kvark.errors.InvalidArgumentError, match="image_url"):
        model.chat([{"role": "user", "content": picture}])
    with pytest.raises(kvark.errors.InvalidArgumentError, match=r"messages\[0\] has no content"):
        model.chat([{"role": "user"}])


def test_reprs_and_help(model):
    session = model.session()
    session.feed([1, 2, 3])
    assert repr(session).endswith("3 of 1024 tokens)")
    branches = model.branches(cells=64)
    branch = branches.new_branch([1, 2])
    assert repr(branch) == f"Branch(seq={branch.seq}, 2 tokens)"
    assert repr(branches).endswith("1 branches, 2 of 64 cells)")
    branch.drop()
    assert "dropped" in repr(branch)
    for method in (kvark.Model.generate, kvark.Session.generate, kvark.Branches.generate):
        assert "max_tokens" in inspect.getdoc(method)
    assert "cache_type_k" in inspect.getdoc(kvark.Model)


@pytest.mark.parametrize(
    "work",
    [
        "branches = model.branches(cells=4096)\n"
        "pair = [branches.new_branch('Once'), branches.new_branch('Twice')]\n"
        "print('ready', flush=True)\n"
        "branches.generate(pair, ignore_eos=True, max_tokens=2000)\n",
        "print('ready', flush=True)\nmodel.embed(['word ' * 6000] * 50)\n",
        "session = model.session()\nprint('ready', flush=True)\nsession.generate('word ' * 6000, max_tokens=2).result()\n",
        "session = model.session()\nprint('ready', flush=True)\nsession.feed('word ' * 6000)\n",
    ],
    ids=["branches", "embed", "generate", "feed"],
)
def test_ctrl_c_is_raised_at_once(path, work):
    program = (
        "import kvark, os, signal\n"
        # A process that was started in the background may ignore the signal.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"model = kvark.Model({path!r}, context=8192)\n"
        "try:\n"
        + "".join(f"    {line}\n" for line in work.splitlines())
        # A process that is asked to exit would wait for the step that still runs.
        + "except KeyboardInterrupt:\n    print('interrupted', flush=True)\n    os._exit(3)\n"
        "print('not interrupted', flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == b"interrupted\n"
    assert child.wait() == 3


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 9}}, "required": ["city"]},
    },
}


def test_tools_are_called_and_answered(model):
    messages = [{"role": "user", "content": "Weather in Paris?"}]
    result = model.chat(messages, tools=[TOOL], tool_choice="required", max_tokens=80, **GREEDY)
    (call,) = result.tool_calls
    assert call["function"]["name"] == "weather"
    assert "city" in json.loads(call["function"]["arguments"])
    assert pickle.loads(pickle.dumps(result)).tool_calls == result.tool_calls
    messages += [
        {"role": "assistant", "content": None, "tool_calls": result.tool_calls},
        {"role": "tool", "tool_call_id": call["id"], "content": "18 degrees"},
    ]
    prompt = model.detokenize(model.apply_chat_template(messages), special=True)
    assert "weather" in prompt and "18 degrees" in prompt
    answer = model.chat(messages, tools=[TOOL], max_tokens=8, **GREEDY)
    assert answer.tool_calls == [] or answer.finish_reason == "stop"
