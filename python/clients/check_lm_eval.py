"""Proves that lm-eval evaluates a model of kvark serve: log-likelihoods of choices, through `echo` with log-probabilities.

python check_lm_eval.py ADDRESS, or `cargo xtask check-serve --frameworks`.
"""

import json
import pathlib
import sys
import tempfile

import lm_eval
import requests
from lm_eval.tasks import TaskManager

ADDRESS = sys.argv[1]
QUESTIONS = [
    ("The capital of France is", [" Paris", " Madrid"], 0),
    ("Two plus two is", [" a river", " four"], 1),
    ("The sun rises in the", [" east", " freezer"], 0),
    ("Cats and dogs are", [" numbers", " animals"], 1),
    ("Water is made of hydrogen and", [" oxygen", " cheese"], 0),
    ("The first month of the year is", [" October", " January"], 1),
]
TASK = """task: kvark_choices
dataset_path: json
dataset_kwargs:
  data_files: {{validation: {data}}}
output_type: multiple_choice
validation_split: validation
doc_to_text: question
doc_to_choice: choices
doc_to_target: answer
target_delimiter: ""
metric_list:
  - metric: acc
"""


def likelihood(context, choice):
    """The log-likelihood of a choice, asked for directly."""
    tokens = [
        requests.post(f"{ADDRESS}/tokenize", json={"content": text}).json()["tokens"] for text in (context, context + choice)
    ]
    body = {"prompt": tokens[1], "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    answer = requests.post(f"{ADDRESS}/v1/completions", json=body).json()
    return sum(answer["choices"][0]["logprobs"]["token_logprobs"][len(tokens[0]) : -1])


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        data = folder / "questions.jsonl"
        rows = [{"question": q, "choices": choices, "answer": answer} for q, choices, answer in QUESTIONS]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "choices.yaml").write_text(TASK.format(data=data))
        model = requests.get(f"{ADDRESS}/v1/models").json()["data"][0]["id"]
        results = lm_eval.simple_evaluate(
            model="local-completions",
            model_args={"model": model, "base_url": f"{ADDRESS}/v1/completions", "tokenizer_backend": "remote", "num_concurrent": 2},
            tasks=["kvark_choices"],
            task_manager=TaskManager(include_path=str(folder)),
            log_samples=True,
        )
    accuracy = results["results"]["kvark_choices"]["acc,none"]
    assert accuracy >= 0.8, results["results"]
    for sample in results["samples"]["kvark_choices"]:
        question, choices, _ = QUESTIONS[sample["doc_id"]]
        for choice, [found, _] in zip(choices, sample["filtered_resps"]):
            assert abs(float(found) - likelihood(question, choice)) < 1e-4, (question, choice, found)
    print(f"lm-eval: accuracy {accuracy} of {len(QUESTIONS)} questions")


main()
