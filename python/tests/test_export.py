"""Archives: what is in them, and that PyTorch itself still loads them."""

import json
import zipfile
from pathlib import Path

import pytest
import torch
import transformers

from kvark_export import cache_metadata, contiguous_cache, export_module, ring_cache, write_kv_cache_metadata
from kvark_export.__main__ import main
from kvark_export.decoder import Decoder, ExportError, export_decoder, facts, feature_layers

#: A tiny random llama.
GGUF = Path(__file__).parents[2] / "crates/import/tests/fixtures/decoder/llama_plain.gguf"


def members(path):
    with zipfile.ZipFile(path) as archive:
        return {name.split("/", 1)[1]: archive.read(name) for name in archive.namelist()}


def tiny(**changes):
    torch.manual_seed(0)
    sizes = dict(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=4, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32,
    )
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**(sizes | changes))).eval()


def test_a_module_as_it_is(tmp_path):
    path = tmp_path / "linear.pt2"
    module, x = torch.nn.Linear(3, 2), torch.randn(4, 3)
    export_module(module, (x,), path, dynamic_shapes=({0: torch.export.Dim("N", min=1, max=9)},))
    found = members(path)
    assert found["archive_format"] == b"pt2"
    text = found["models/model.json"].decode()
    assert "stack_trace" not in text and str(tmp_path) not in text and ".py" not in text
    loaded = torch.export.load(str(path)).module()
    torch.testing.assert_close(loaded(x), module(x))


def test_weights_are_aligned(tmp_path):
    path = tmp_path / "linear.pt2"
    export_module(torch.nn.Linear(5, 7), (torch.randn(1, 5),), path)
    data = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            head = info.header_offset
            name, extra = (int.from_bytes(data[head + i : head + i + 2], "little") for i in (26, 28))
            assert (head + 30 + name + extra) % 64 == 0


def test_metadata():
    assert write_kv_cache_metadata({}, n_layers=2, n_kv_heads=3, head_dim=4) == {
        "kv_cache.schema_version": 1,
        "kv_cache.n_layers": 2,
        "kv_cache.n_kv_heads": 3,
        "kv_cache.head_dim": 4,
    }
    with pytest.raises(ValueError, match="n_layers"):
        write_kv_cache_metadata({}, n_layers=0, n_kv_heads=1, head_dim=1)
    facts = dict(kv_heads=[1, 1], head_dims=[8, 8], prefill_chunk=16, max_context=64)
    flat = cache_metadata(windows=[0, 0], **facts)
    assert flat["get_n_caches"] == flat["kv_cache.n_layers"] == 2
    assert "kv_cache.n_layers" not in cache_metadata(windows=[4, 0], **facts)


def test_a_decoder_decodes_as_before():
    model = tiny()
    ids = torch.randint(0, 40, (1, 6))
    with torch.no_grad():
        truth = model(input_ids=ids).logits
    _, program = export_decoder(model, features=True, max_step=8)
    run = program.module()
    with torch.no_grad(), contiguous_cache():
        outputs = [run(ids[:, a:b], torch.arange(a, b).unsqueeze(-1)) for a, b in ((0, 4), (4, 5), (5, 6))]
    torch.testing.assert_close(torch.cat([o[0] for o in outputs], 1), truth, atol=1e-5, rtol=1e-4)
    assert outputs[0][1].shape == (1, 4, 3 * 16)
    assert feature_layers(30) == (2, 15, 27)


def test_soft_caps_are_exported():
    torch.manual_seed(0)
    config = transformers.Gemma2Config(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, head_dim=8,
        num_key_value_heads=1, max_position_embeddings=32, sliding_window=3, query_pre_attn_scalar=8,
        attn_logit_softcapping=0.5, layer_types=["sliding_attention", "full_attention"],
    )
    model = transformers.Gemma2ForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.4)
    ids = torch.randint(0, 40, (1, 6))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        truth = model(input_ids=ids).logits
    _, program = export_decoder(model, max_step=8)
    caps = [node.args[-1] for node in program.graph.nodes if node.target is torch.ops.kvcache.update_and_attend.softcap]
    assert caps == [0.5, 0.5]
    run = program.module()
    for cache in (contiguous_cache([3, 0]), ring_cache([3, 0])):
        with torch.no_grad(), cache:
            outputs = [run(ids[:, a:b], torch.arange(a, b).unsqueeze(-1)) for a, b in ((0, 4), (4, 5), (5, 6))]
        torch.testing.assert_close(torch.cat(outputs, 1), truth, atol=1e-5, rtol=1e-4)


def test_features_of_chosen_layers():
    model = tiny()
    ids = torch.randint(0, 40, (1, 5))
    with torch.no_grad():
        hidden = model(input_ids=ids, output_hidden_states=True).hidden_states
    _, program = export_decoder(model, features=[3, 0], max_step=8)
    with torch.no_grad(), contiguous_cache():
        _, features = program.module()(ids, torch.arange(5).unsqueeze(-1))
    torch.testing.assert_close(features, torch.cat([hidden[3], hidden[0]], -1), atol=1e-5, rtol=1e-4)
    assert facts(model.config, 8, [3, 0])["kvark.feature_layers"] == [3, 0]
    assert facts(model.config, 8, True)["kvark.feature_layers"] == [2, 2, 1]
    assert "kvark.feature_layers" not in facts(model.config, 8)
    with pytest.raises(ExportError, match="no layer 4"):
        Decoder(model, [4])


def test_what_cannot_be_exported(tmp_path, capsys):
    other = transformers.GPTNeoConfig(
        vocab_size=8, hidden_size=8, num_layers=2, num_heads=2, attention_types=[[["global"], 2]]
    )
    with pytest.raises(ExportError, match="gpt_neo"):
        Decoder(transformers.GPTNeoForCausalLM(other))
    assert main([str(tmp_path / "absent"), "-o", str(tmp_path / "a.pt2")]) == 1
    assert "does not exist" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(tmp_path), "-o", "model.bin"])


def test_the_command_on_a_folder(tmp_path):
    folder, path = tmp_path / "model", tmp_path / "model.pt2"
    tiny(tie_word_embeddings=True).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    assert main([str(folder), "-o", str(path), "--max-step", "16"]) == 0
    found = members(path)
    metadata = json.loads(found["extra/kvark/metadata.json"])
    assert (metadata["get_windows"], metadata["get_prefill_chunk_size"]) == ([0] * 4, 16)
    assert found["extra/kvark/tokenizer.json"] == b"{}"
    assert json.loads(found["extra/kvark/config.json"])["model_type"] == "llama"


def test_the_command_on_a_gguf_file(tmp_path):
    path = tmp_path / "model.pt2"
    assert main([str(GGUF), "-o", str(path), "--max-step", "16"]) == 0
    found = members(path)
    assert json.loads(found["extra/kvark/config.json"])["model_type"] == "llama"
    assert "extra/kvark/tokenizer.ggml.json" in found
