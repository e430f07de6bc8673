"""Measures a head with kvark on the prompts of held_out.txt: tokens a forward over all answers, for three shapes of trees.

    python3 measure.py KVARK HEAD.gguf
"""

import json
import subprocess
import sys
from pathlib import Path

SHAPES = {
    "chain of 3": "--spec-tree 3 --spec-depth 3 --spec-topk 1",
    "tree of 7, depth 4": "--spec-tree 7 --spec-depth 4",
    "tree of 15, depth 6": "--spec-tree 15 --spec-depth 6",
}
TOKENS = 128


def measure(kvark, head, shape, prompts):
    """Tokens and forwards of greedy answers to the prompts."""
    tokens = rounds = 0
    for prompt in prompts:
        command = [kvark, "run", "--chat", "-p", prompt, "-n", str(TOKENS), "--temp", "0", "--json"]
        command += ["--spec-type", "eagle3", *shape.split(), "-md", head]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        spec = json.loads(output.strip().splitlines()[-1])["spec"]
        tokens += spec["accepted"] + spec["rounds"]
        rounds += spec["rounds"]
    return tokens, rounds


def main():
    kvark, head = sys.argv[1:]
    prompts = (Path(__file__).parent / "held_out.txt").read_text().splitlines()
    for name, shape in SHAPES.items():
        tokens, rounds = measure(kvark, head, shape, prompts)
        print(f"{name}: {tokens / rounds:.3f} tokens a forward ({tokens} tokens, {rounds} forwards)", flush=True)


if __name__ == "__main__":
    main()
