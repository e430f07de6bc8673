"""The Python module on real models. KVARK_TEST_MODEL names the default model's file; without it those tests are skipped."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

try:
    import kvark
    import numpy as np
except ModuleNotFoundError as error:
    if error.name not in ("kvark", "numpy"):
        raise
    pytest.skip(f"{error.name} is not installed (pip install .)", allow_module_level=True)


@pytest.fixture(scope="session")
def model():
    path = os.environ.get("KVARK_TEST_MODEL")
    if not path:
        pytest.skip("KVARK_TEST_MODEL is not set")
    return kvark.Model(path, context=1024, threads=2)


def test_chat_answers(model):
    answer = model.chat("What is the capital of France?", temperature=0, max_tokens=24)
    assert "Paris" in str(answer)
    assert answer.finish_reason in ("stop", "length")
    assert answer.timings["predicted_n"] == len(answer.tokens)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    assert model.chat(messages, temperature=0, max_tokens=24).tokens == answer.tokens


def test_generate_streams_the_same_text_everywhere(model):
    options = {"temperature": 0, "max_tokens": 16}
    prompt = "The capital of France is"
    whole = model.generate(prompt, **options).result()
    assert "".join(model.generate(prompt, **options)) == whole.text
    session = model.session()
    assert session.generate(prompt, **options).result().tokens == whole.tokens

    async def collect():
        return [piece async for piece in model.agenerate(prompt, **options)]

    assert "".join(asyncio.run(collect())) == whole.text


def test_a_session_rewinds_freezes_saves_and_restores(model, tmp_path):
    session = model.session()
    length = session.feed("The capital of France is")
    logits = session.logits()
    assert logits.dtype == np.float32 and logits.shape == (model.vocab_size,)
    # Row by row the logits are the same bits.
    again = model.session().feed_all_logits("The capital of France is")
    assert (again[-1] == logits).all()
    best = int(logits.argmax())
    session.feed([best])
    session.rewind(length)
    assert len(session) == length
    session.rewind(length - 1)
    session.feed(session_tokens(model)[length - 1 : length])
    assert (session.logits() == logits).all()
    session.save(tmp_path / "a.kvsnap", notes=b"mine")
    other = model.session()
    assert other.restore(tmp_path / "a.kvsnap") == b"mine"
    assert other.tokens == session.tokens
    prefix = session.freeze()
    shared = model.session(prefix)
    assert shared.tokens == prefix.tokens and len(prefix) == length
    shared.feed([best])
    other.feed([best])
    assert (shared.logits() == other.logits()).all()


def test_a_cache_becomes_another_one(model):
    session = model.session(cache="cells")
    session.feed("The capital of France is Paris, and the capital of Italy is Rome.")
    report = session.migrate(cache_type="q8", measure=True)
    assert report["bytes_after"] < report["bytes_before"]
    assert 0 < report["mean_logprob"] < 0.2
    assert "mean_logprob" not in session.migrate(kind="tree")
    session.migrate(kv_policy="layers 0-3 f16; others k=q8 v=q4")
    before = len(session)
    session.feed(" The capital of Spain is")
    assert len(session) > before
    for wrong in ({"kind": "ring"}, {"cache_type": "q9"}, {"kv_policy": "layers 99 q8"}, {"device": "abacus"}):
        with pytest.raises(kvark.errors.KvarkError):
            session.migrate(**wrong)
    assert session.logits().shape == (model.vocab_size,)


def test_an_edit_moves_the_rows_behind_it(model):
    session = model.session()
    session.feed("One. Two. Three. Four. Five. Six. Seven. Eight. Nine. Ten. Eleven. Twelve. Thirteen.")
    edited = session.tokens[:4] + session.tokens[8:]
    report = session.splice(edited)
    assert session.tokens == edited
    assert report["moved"] > 10 and sum(report.values()) == len(edited)
    exact = model.session()
    exact.feed(edited)
    assert (session.logits() != exact.logits()).any()
    again = session.tokens[:6] + session.tokens[7:]
    assert session.splice(again, share=1.0)["moved"] == 0
    with pytest.raises(kvark.errors.InvalidArgumentError):
        session.splice(again, share=2)


def test_caches_stand_on_a_prefix_file(model, tmp_path):
    session = model.session()
    session.feed("The capital of France is")
    session.save_prefix(tmp_path / "a.kvp")
    prefix = model.prefix(tmp_path / "a.kvp")
    assert prefix.tokens == session.tokens
    best = int(session.logits().argmax())
    session.feed([best])
    for cache in ("contiguous", "cells", "tree"):
        on = model.session(prefix, cache=cache)
        assert on.tokens == prefix.tokens
        on.feed([best])
        assert (on.logits() == session.logits()).all()
    branches = model.branches(cells=512, prefix=prefix)
    for branch in (branches.new_branch(), branches.new_branch()):
        assert len(branch) == len(prefix)
        branch.feed([best])
        assert (branch.logits() == session.logits()).all()
    (tmp_path / "b.kvp").write_bytes((tmp_path / "a.kvp").read_bytes()[:-1])
    with pytest.raises(kvark.errors.SnapshotError, match="b.kvp"):
        model.prefix(tmp_path / "b.kvp")


def session_tokens(model):
    session = model.session()
    session.feed("The capital of France is")
    return session.tokens


def test_branches_share_cells_and_step_together(model):
    branches = model.branches(cells=512)
    trunk = branches.new_branch("Once upon a time")
    length = len(trunk)
    left, right = trunk.fork(), trunk.fork()
    assert branches.cells_used == length
    alone = model.session()
    alone.feed(trunk.tokens)
    best = int(alone.logits().argmax())
    alone.feed([best])
    branches.step([(left, best), (right, 17)])
    assert (left.logits() == alone.logits()).all()
    assert not (right.logits() == left.logits()).all()
    map_ = kvark.CellMap(branches, [left, right])
    assert (map_.shared == 2).sum() == length and (map_.shared == 1).sum() == 2
    assert sorted(map_.array[0][map_.array[0] >= 0]) == list(range(length + 1))
    assert "<svg" in map_._repr_html_()
    texts = branches.generate([left, right], max_tokens=4, temperature=0)
    assert [len(text.tokens) for text in texts] == [4, 4]
    right.drop()
    with pytest.raises(kvark.errors.InvalidArgumentError, match="dropped"):
        right.feed([1])
    left.keep()
    with pytest.raises(kvark.errors.InvalidArgumentError, match="dropped"):
        trunk.feed([1])
    left.rewind(2)
    assert branches.cells_used == 2


def test_a_number_of_a_dropped_branch_is_not_its_own_again(model):
    branches = model.branches(cells=64)
    old = branches.new_branch([1, 2, 3])
    old.drop()
    new = branches.new_branch([4, 5])
    assert new.seq == old.seq
    with pytest.raises(kvark.errors.InvalidArgumentError):
        old.feed([1])
    del old
    assert new.tokens == [4, 5]


def test_constrained_output(model):
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    import json

    answer = model.chat("Name a city as JSON.", json_schema=schema, temperature=0, max_tokens=64)
    assert json.loads(answer.text)["city"] in ("Paris", "Rome")
    assert model.chat("A digit?", regex="[0-9]", temperature=0).text.isdigit()


def test_score_embed_tokenize_and_plan(model):
    score = model.score("The capital of France is Paris.")
    assert len(score["logprob"]) == len(score["ids"]) - 1
    assert score["perplexity"] == pytest.approx(np.exp(-score["logprob"].mean()), rel=1e-6)
    vectors = model.embed(["a cat", "a kitten", "a railway bridge"])
    assert vectors.shape[0] == 3 and np.linalg.norm(vectors[0]) == pytest.approx(1, rel=1e-4)
    ids = model.tokenize("Hello world")
    assert model.detokenize(ids) == "Hello world"
    plan = model.plan()
    assert plan["total_bytes"] >= plan["kv_bytes"] > 0
    assert "<table" in plan._repr_html_()


def test_errors_name_their_kind(model, tmp_path):
    with pytest.raises(kvark.errors.InvalidArgumentError, match="temprature"):
        model.generate("x", temprature=1)
    with pytest.raises(kvark.KvarkError) as error:
        model.session().feed([10**6])
    assert error.value.kind == "UnknownToken"
    with pytest.raises(kvark.errors.ContextFullError):
        model.session().feed([1] * 2000)
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF nonsense")
    with pytest.raises(kvark.errors.ModelError, match="bad.gguf"):
        kvark.Model(bad)
    with pytest.raises(kvark.errors.InvalidArgumentError, match="nowhere"):
        kvark.Model("nowhere.gguf")
    with pytest.raises(kvark.errors.GrammarError):
        model.generate("x", regex="(")


def test_an_unknown_device_is_named(model):
    with pytest.raises(kvark.errors.InvalidArgumentError, match="tpu"):
        kvark.Model(model.path, device="tpu")


def test_several_threads_generate_at_once(model):
    expected = [model.generate(f"Number {n} is", temperature=0, max_tokens=12).result().tokens for n in range(4)]
    found = [None] * 4

    def work(n):
        found[n] = model.generate(f"Number {n} is", temperature=0, max_tokens=12).result().tokens

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_ctrl_c_stops_a_generation(model):
    program = (
        "import kvark, signal\n"
        # A process that was started in the background may ignore the signal.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"model = kvark.Model({str(model.path)!r}, context=4096)\n"
        "print('ready', flush=True)\n"
        "model.generate('Once', ignore_eos=True, max_tokens=4000).result()\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(signal.SIGINT)
    _, complaint = child.communicate()
    assert child.returncode == -signal.SIGINT or b"KeyboardInterrupt" in complaint


def test_inference_session_has_onnx_runtimes_interface():
    fixtures = os.environ.get("KVARK_FIXTURES")
    if not fixtures:
        pytest.skip("KVARK_FIXTURES is not set")
    path = Path(fixtures) / "static-scatter-bias-decoder/model.onnx"
    if not path.exists():
        pytest.skip("no fixture")
    session = kvark.InferenceSession(path, threads=2)
    inputs = {arg.name: arg for arg in session.get_inputs()}
    assert all(arg.type.startswith("tensor(") for arg in inputs.values())
    with pytest.raises(kvark.errors.InvalidArgumentError, match="no output"):
        session.run(["nothing"], {})
    with pytest.raises(kvark.KvarkError, match="is missing"):
        session.run(None, {})


def test_every_sampling_option_is_taken(model):
    greedy = model.generate("One, two,", temperature=0, max_tokens=8).result().tokens
    options = {"seed": 3, "max_tokens": 8, "temperature": 1.5}
    assert model.generate("One, two,", top_n_sigma=0.001, **options).result().tokens == greedy
    assert model.generate("One, two,", top_k=1, samplers=["top_k"], **options).result().tokens == greedy
    banned = model.generate("One, two,", logit_bias={greedy[0]: float("-inf")}, temperature=0, max_tokens=8)
    assert greedy[0] not in banned.result().tokens
    many = {"mirostat": 2, "dry_multiplier": 0.8, "dry_sequence_breakers": [","], "xtc_probability": 0.5, "repeat_last_n": -1}
    assert model.generate("One, two,", **many, **options).result().tokens
    with pytest.raises(kvark.errors.InvalidArgumentError, match="mirostat must be 0 or 2"):
        model.generate("One, two,", mirostat=1)
    with pytest.raises(kvark.errors.InvalidArgumentError, match="top_p must be a number from 0 to 1"):
        model.generate("One, two,", top_p=2)
