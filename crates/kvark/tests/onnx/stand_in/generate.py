"""Makes the stand-in for the outside fixture of a decoder with static buffers and a mask as float bias.

    pip install onnxruntime==1.31.1 numpy==2.4.6
    python generate.py

The folder then has what the outside one has, of a smaller model: `model.onnx` (a copy of ../mistral_bias.onnx),
`genai_config.json`, and in `golden_io.npz` every input and output of a prefill of [1, 2, 3, 4] and a decode of 5 as ONNX
Runtime computes them, named `prefill_in.NAME`, `prefill_out.NAME`, `decode_in.NAME` and `decode_out.NAME`.
"""

import json
import pathlib
import shutil

import numpy as np
import onnxruntime as ort

FOLDER = pathlib.Path(__file__).parent
STEPS = {"prefill": [1, 2, 3, 4], "decode": [5]}


def record(session: ort.InferenceSession) -> dict[str, np.ndarray]:
    outputs = [output.name for output in session.get_outputs()]
    caches = {
        port.name: np.zeros([1, *port.shape[1:]], np.float32) for port in session.get_inputs() if "_cache." in port.name
    }
    golden, length = {}, 0
    for step, ids in STEPS.items():
        end = length + len(ids)
        feeds = caches | {
            "input_ids": np.array([ids], np.int64),
            "position_ids": np.arange(length, end, dtype=np.int64)[None],
            "write_indices": np.array([length], np.int64),
            "nonpad_kv_seqlen": np.array([end], np.int64),
        }
        found = dict(zip(outputs, session.run(None, feeds)))
        golden |= {f"{step}_in.{name}": value for name, value in feeds.items()}
        golden |= {f"{step}_out.{name}": value for name, value in found.items()}
        caches = {name: found[f"updated_{name}"] for name in caches}
        length = end
    return golden


def config(vocab: int, rows: int) -> dict:
    inputs = {"past_key_names": "key_cache.%d", "past_value_names": "value_cache.%d"}
    outputs = {"present_key_names": "updated_key_cache.%d", "present_value_names": "updated_value_cache.%d"}
    return {
        "model": {
            "type": "mistral",
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "vocab_size": vocab,
            "context_length": rows,
            "decoder": {"filename": "model.onnx", "inputs": inputs, "outputs": outputs},
        },
        "search": {"max_length": rows, "do_sample": False},
    }


def main() -> None:
    shutil.copyfile(FOLDER.parent / "mistral_bias.onnx", FOLDER / "model.onnx")
    golden = record(ort.InferenceSession(FOLDER / "model.onnx"))
    np.savez(FOLDER / "golden_io.npz", **golden)
    vocab, rows = golden["decode_out.logits"].shape[2], golden["decode_in.key_cache.0"].shape[1]
    text = json.dumps(config(vocab, rows), indent=2)
    (FOLDER / "genai_config.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
