"""Asks llama.cpp, as second judge beside transformers, about the tiny decoders of `crates/import/tests/fixtures/decoder`.

    python python/coverage/llama_judge.py [--environment DIR] [--table FILE] [NAME ...]

Makes a virtual environment in DIR with pinned packages of PyPI, and runs itself in it. llama.cpp gets every beginning of a fixture's tokens,
and gives the log-probabilities of all tokens after it (f32 caches, no flash attention). They are compared with those of transformers
in the fixture's `.json`, from which kvark's differ by at most 1e-4 of the logits' standard deviation (`cargo xtask test`). Fixtures have no
tokenizer: llama.cpp reads a copy with the bytes' names as tokens. Every fixture is judged in a process of its own, because llama.cpp
ends the process where its assertions fail.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

PACKAGES = ["xllamacpp==2026.10.11549", "gguf==0.19.0", "numpy", "tqdm", "pyyaml", "requests"]

#: What is known about fixtures that llama.cpp refuses or answers otherwise: it takes some facts from the number of layers or tokens.
NOTES = {
    "bailingmoe2": "takes heads of width / heads elements only",
    "command_r_plus": "takes norms of queries and keys in files of 64 layers only",
    "deepseek2_joined": "takes queries without latent rows in files of 26, 27 or 48 layers only",
    "deepseek2_lite": "takes queries without latent rows in files of 26, 27 or 48 layers only",
    "deepseek2_q8_0": "takes queries without latent rows in files of 26, 27 or 48 layers only",
    "dots1": "takes as many heads of keys as of queries only",
    "exaone4_windows": "has windows in files of 64 layers only",
    "gemma4": "wants the last two layers with keys and values to be one with a window and one without, in this order",
    "glm47_flash": "the file has no gating function; llama.cpp takes a sigmoid in files of 47 layers and 154,880 tokens only",
    "glm47_flash_mtp": "the file has no gating function; llama.cpp takes a sigmoid in files of 47 layers and 154,880 tokens only",
    "llama_mixed": "norms in f16",
    "mistral": "has no windows in files of the architecture llama",
    "phi3_q8_0": "has no windows in files of Phi-3",
    "phi3_shortrope": "its smallest context, 256 tokens, calls for the factors of long contexts",
}

FIXTURES = Path(__file__).resolve().parents[2] / "crates/import/tests/fixtures/decoder"

HEAD = """## Tiny decoders in llama.cpp

`python/coverage/llama_judge.py` asks llama.cpp ({version}) as second judge: it gives the tiny random decoders that kvark's tests compare
with transformers to llama.cpp, token ids in, and compares the log-probabilities of all {vocabulary} tokens after every beginning of
{tokens} tokens with those of transformers in f32, from which kvark's logits differ by at most 1e-4 of their standard deviation. *Argmax* counts the
positions at which llama.cpp has the same best token. *Distance* is the largest difference of a log-probability. *Margin* is by how much
transformers' two best tokens differ at most where the best token is another. Distances of thousandths are those of GELU, which llama.cpp
reads from a table of f16, and of files with quantised weights (gpt_oss, qwen3moe and those named so), for which it rounds activations too:
there its best token is another only where the margin is below the distance. The last column says what the other differences are.

"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--environment", type=Path, default=Path("target/llama-judge"))
    parser.add_argument("--table", type=Path)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if options.one:
        print("result " + json.dumps(judge(options.one)))
        return
    python = options.environment / "bin/python"
    if not python.exists():
        venv.create(options.environment, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    names = options.names or sorted(path.stem for path in FIXTURES.glob("*.gguf"))
    rows = []
    for name in names:
        rows.append((name, ask(python, FIXTURES / f"{name}.gguf")))
        print(" | ".join(cells(*rows[-1])), flush=True)
    if options.table:
        from document import replace_section

        first = json.loads((FIXTURES / f"{names[0]}.json").read_text())
        head = HEAD.format(
            version=PACKAGES[0].replace("==", " "), vocabulary=len(first["logits"][0]), tokens=len(first["tokens"])
        )
        lines = ["| fixture | argmax | distance | margin | llama.cpp |", "|---|---|---|---|---|"]
        lines += ["| " + " | ".join(cells(*row)) + " |" for row in rows]
        judged = [result for _, result in rows if "equal" in result]
        same = sum(result["equal"] == result["positions"] for result in judged)
        told = f"llama.cpp judges {len(judged)} of {len(rows)} files, {same} of them with the same best token at every position."
        replace_section(options.table, head + told + "\n\n" + "\n".join(lines) + "\n")


def cells(name, result):
    """A row of the table."""
    note = NOTES.get(name, "")
    if "reason" in result:
        return [name, "", "", "", f"refuses: {result['reason']}" + (f" ({note})" if note else "")]
    margin = f"{result['margin']:.2g}" if result["equal"] < result["positions"] else ""
    return [name, f"{result['equal']} of {result['positions']}", f"{result['distance']:.2g}", margin, note]


def ask(python, path):
    """What llama.cpp says about a fixture, or why it says nothing."""
    try:
        run = subprocess.run(
            [python, __file__, "--one", path], capture_output=True, text=True, errors="replace", timeout=120,
            env=os.environ | {"GGML_NO_BACKTRACE": "1"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"reason": "no answer within two minutes"}
    for line in run.stdout.splitlines():
        if line.startswith("result "):
            return json.loads(line.removeprefix("result "))
    return {"reason": reason(run.stdout + run.stderr)}


def reason(log):
    """The line of a log that says what failed."""
    for mark in ("error loading model: ", "failed to initialize the context: ", "thirdparty/llama.cpp/"):
        for line in log.splitlines():
            if mark in line:
                # A failed assertion begins with its place in the source.
                told = line.split(mark, 1)[1].split(": ", mark.startswith("third"))[-1]
                told = " ".join(told.removeprefix("error loading model hyperparameters: ").split())
                return told.replace("|", "\\|")[:120].rstrip(", ")
    return "refused without a reason"


def with_tokenizer(path, to):
    """Writes a copy of a file with a tokenizer, which llama.cpp does not load a model without."""
    import gguf

    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(to, reader.fields["general.architecture"].contents())
    vocabulary = None
    for tensor in reader.tensors:
        if tensor.name == "token_embd.weight":
            vocabulary = int(tensor.shape[1])
    for name, field in reader.fields.items():
        # The name of a model of Phi-3 calls for tokens of its tokenizer.
        if name.startswith(("GGUF.", "tokenizer.", "general.")):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, inner)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"<{i}>" if i else "Ċ" for i in range(vocabulary)])
    writer.add_token_types([gguf.TokenType.NORMAL] * vocabulary)
    writer.add_token_merges(["< 1"])
    writer.add_add_bos_token(False)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def judge(path):
    import numpy as np
    import xllamacpp

    truth = json.loads(path.with_suffix(".json").read_text())
    tokens, logits = truth["tokens"], np.asarray(truth["logits"], np.float64)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        with_tokenizer(path, copy)
        params = xllamacpp.CommonParams()
        params.model.path = str(copy)
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_parallel = 64, 64, 64, 1
        params.warmup, params.fit_params, params.n_gpu_layers, params.cache_prompt = False, False, 0, False
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.cpuparams.n_threads = 2
        server = xllamacpp.Server(params)
        own = np.stack([after(server, tokens[: i + 1], logits.shape[1]) for i in range(len(tokens))])
    peaks = logits.max(-1, keepdims=True)
    expected = logits - peaks - np.log(np.exp(logits - peaks).sum(-1, keepdims=True))
    two = np.sort(expected, -1)[:, -2:]
    differs = own.argmax(-1) != expected.argmax(-1)
    return {
        "equal": int((~differs).sum()),
        "positions": len(tokens),
        "distance": float(np.abs(own - expected).max()),
        "margin": float((two[:, 1] - two[:, 0])[differs].max()) if differs.any() else 0.0,
    }


def after(server, tokens, vocabulary):
    """Log-probabilities of the token after these."""
    import numpy as np

    answer = server.handle_completions({
        "prompt": tokens, "n_predict": 1, "temperature": 0.0, "n_probs": vocabulary, "cache_prompt": False,
        "return_tokens": True, "ignore_eos": False,
    })  # fmt: skip
    [entry] = answer["choices"][0]["logprobs"]["content"]
    result = np.full(vocabulary, -np.inf)
    for token in entry["top_logprobs"]:
        result[token["id"]] = token["logprob"]
    return result


if __name__ == "__main__":
    main()
