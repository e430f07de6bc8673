"""Writes `coding.json`, the trace of a coding agent that `kvark agents-bench` replays: what the agent and its tools say is fixed, the files are
this project's own, as they were at COMMIT. Run it in the tree; it needs git and nothing else."""

import json
import subprocess
from pathlib import Path

COMMIT = "801c0cbd"

SYSTEM = """You are a careful software engineer who works in a repository by calling tools. You never guess what a file contains: you read it first. \
You make the smallest change that fixes the cause, and you say in one sentence why it is the cause.

How you work:
1. Read the task. If it names a symptom, find the code that shows it before you think about a fix.
2. Search for names rather than reading whole files. Read the part of a file that you need, with the line numbers.
3. Before an edit, state what the code does now, what it should do, and which other places depend on it.
4. After an edit, run the tests of the crate that you changed. If one fails, read its output to the end before you change anything else.
5. Write a test that fails without your change. A test waits for a condition, never for a time.
6. When you are done, summarise the change in at most five lines: what was wrong, why this is the fix, how it was tested, what is left.

Rules of this repository:
- One idea in a file, named after its main type; files of 150 to 500 lines. Dependencies point one way, and a test checks this.
- Public items have documentation whose first sentence says what the thing is. Comments inside functions state hidden constraints only.
- Bad input returns a typed error that names the thing. A broken invariant of our own asserts. No panic is reachable from a file's bytes.
- Planning is pure: a step that fails leaves the cache as it was, and the commit after the forward is the only change.
- A row's bits depend only on what it sees, not on the other rows of its step, the size of the step or the number of threads.
- Numbers are measured, never guessed. A change to a kernel shows the time before and after.
- Errors are an enum for each crate behind an opaque type with a kind. Only the command uses untyped errors.
- There is no unsafe code outside the kernels, and each block there names the fact that it relies on.
- Commits do one thing. The subject is imperative; the body says what was wrong and why this is the fix.

Answer with a tool call when you need something from the repository, and in prose only when you are done or need a decision. Several tool calls \
that do not depend on one another go into one answer. Never repeat the content of a file in an answer. If the user interrupts you, stop, say what \
you were doing, and wait. If you cannot finish, say what is missing instead of pretending."""


def tool(name, about, **parameters):
    properties = {key: {"type": kind, "description": text} for key, (kind, text) in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)[:1]}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}


TOOLS = [
    tool(
        "read_file",
        "Reads a part of a text file of the repository. Lines are numbered from 1.",
        path=("string", "Path of the file, from the root of the repository"),
        first=("integer", "The first line to read; 1 if left out"),
        last=("integer", "The last line to read; the end of the file if left out"),
    ),
    tool(
        "search",
        "Finds a regular expression in the files of a folder and returns the lines with their paths and numbers.",
        pattern=("string", "The regular expression"),
        folder=("string", "The folder to search; the whole repository if left out"),
    ),
    tool("list_files", "Lists the files of a folder with their sizes in lines.", folder=("string", "The folder")),
    tool(
        "edit_file",
        "Replaces a text in a file by another one. The old text must occur exactly once.",
        path=("string", "Path of the file"),
        old=("string", "The text that is replaced, with enough of its surroundings to be unique"),
        new=("string", "The text in its place"),
    ),
    tool(
        "run",
        "Runs a command in the root of the repository and returns its output, at most 400 lines of it, and its exit code.",
        command=("string", "The command line"),
        seconds=("integer", "The longest time that it may take; 600 if left out"),
    ),
    tool(
        "delegate",
        "Gives a task to another agent that begins with this conversation, and returns its summary.",
        task=("string", "What the other agent has to do, and what its summary must contain"),
    ),
]

texts = {}


def part(path, first, last):
    """The name of a part of a file, whose text goes into the trace once."""
    name = f"{path}:{first}-{last}"
    if name not in texts:
        lines = subprocess.check_output(["git", "show", f"{COMMIT}:{path}"], text=True).splitlines()
        numbered = (f"{number}\t{line}" for number, line in enumerate(lines[first - 1 : last], first))
        texts[name] = "\n".join(numbered)
    return {"text": name}


def listing(folder):
    names = subprocess.check_output(["git", "ls-tree", "--name-only", f"{COMMIT}:{folder}"], text=True).split()
    return "\n".join(names)


def matches(pattern, folder):
    found = subprocess.run(["git", "grep", "-n", "-E", pattern, COMMIT, "--", folder], capture_output=True, text=True)
    lines = [line.removeprefix(COMMIT + ":") for line in found.stdout.splitlines()]
    return "\n".join(lines[:40])


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


calls = 0


def tools(said, *used):
    """An answer that calls tools, and their results."""
    global calls
    made, results = [], []
    for name, arguments, result in used:
        calls += 1
        function = {"name": name, "arguments": json.dumps(arguments)}
        made.append({"id": f"call_{calls}", "type": "function", "function": function})
        results.append({"role": "tool", "tool_call_id": f"call_{calls}", "content": result})
    return [{"role": "assistant", "content": said, "tool_calls": made}, *results]


def read(path, first, last):
    return ("read_file", {"path": path, "first": first, "last": last}, part(path, first, last))


steps = []


def begin(name, task):
    steps.append({"begin": name, "messages": [{"role": "system", "content": {"text": "system"}}, user(task)]})


def ask(name, kind, *messages, **more):
    return {"ask": name, "kind": kind, "add": list(messages), **more}


def test_log(crate, failing):
    """What a run of tests prints: long, and mostly of no interest."""
    names = "rewinds forks removes keeps shifts restores migrates evicts shares plans commits refuses".split()
    kinds = "contiguous cells tree scatter ring window sinks states frozen prefix".split()
    lines = [f"running {len(names) * len(kinds)} tests of {crate}"]
    for kind in kinds:
        for name in names:
            result = "FAILED" if (kind, name) == failing else "ok"
            lines.append(f"test {crate}::{kind}::tests::{name}_after_a_{kind}_step ... {result}")
    lines.append(f"thread '{failing[0]}' panicked: assertion failed: left == right, left: 1412, right: 1411")
    return "\n".join(lines)


texts["system"] = SYSTEM

# The main agent looks around.
begin("main", "A conversation whose cache is made of cells loses one row when it is rewound right after a fork. Find out why, and fix it.")
steps.append(ask("main", "turn"))
steps.append(ask("main", "tool result", *tools("", ("list_files", {"folder": "crates/kv/src"}, listing("crates/kv/src")))))
steps.append(ask("main", "tool result", *tools("Cells are where the symptom is.", read("crates/kv/src/cells.rs", 1, 80))))
steps.append(
    ask(
        "main",
        "parallel tools",
        *tools(
            "I need the operations, the errors, and who calls rewind.",
            read("crates/kv/src/operations.rs", 1, 60),
            read("crates/kv/src/error.rs", 1, 50),
            ("search", {"pattern": "fn rewind|fn fork", "folder": "crates/kv/src"}, matches("fn rewind|fn fork", "crates/kv/src")),
        ),
    )
)
# It forks into branches that work at the same time.
ideas = {
    "branch a": "Check the idea that the reference counts are wrong after the fork. Report in three lines.",
    "branch b": "Check the idea that the position is off by one when a step is not committed. Report in three lines.",
    "branch c": "Check the idea that the window releases the row too early. Report in three lines.",
}
for name in ideas:
    steps.append({"fork": "main", "as": name})
delegated = assistant("Three causes are possible. I look at each of them alone.")
steps.append({"together": [ask(name, "fork", delegated, user(task)) for name, task in ideas.items()]})
steps.append(
    {
        "together": [
            ask("branch a", "tool result", *tools("", read("crates/kv/src/cells.rs", 81, 130))),
            ask("branch b", "tool result", *tools("", read("crates/kv/src/step.rs", 1, 50))),
            ask("branch c", "tool result", *tools("", read("crates/kv/src/ring.rs", 1, 50))),
        ]
    }
)
found = "The counts are right and the window is not involved. The step that was not committed is the cause."
steps.append(ask("main", "turn", delegated, user("Summaries of the three: " + found + " Go on with that.")))
# A long result is cancelled while it is computed, and sent again.
long_log = {"text": "log"}
texts["log"] = test_log("kvark-kv", ("tree", "rewinds"))[:8000]
run_tests = tools("I run the tests as they are now.", ("run", {"command": "cargo test -p kvark-kv"}, long_log))
steps.append(ask("main", "cancelled", *run_tests, cancel=0.6))
steps.append(ask("main", "retry"))

# Other agents come, one after the other.
others = {
    "review": ("Review the planner of steps: say what is hard to follow.", [("crates/kv/src/plan.rs", 1, 70), ("crates/kv/src/plan.rs", 71, 130)]),
    "docs": ("The page on migrations is out of date. Compare it with the code.", [("crates/kv/src/migration.rs", 1, 70), ("docs/design/migration.md", 1, 30)]),
    "tests": ("Add a test of the registry that refuses two kinds of one name.", [("crates/kv/src/registry.rs", 1, 80), ("crates/kv/src/traits.rs", 1, 60)]),
    "policy": ("Explain to a user what the policy of a layer is.", [("crates/kv/src/policy.rs", 1, 80), ("crates/kv/src/config.rs", 1, 60)]),
    "rows": ("Find out whether rows of a sequence can be taken out twice.", [("crates/kv/src/sequence_rows.rs", 1, 80), ("crates/kv/src/layout.rs", 1, 60)]),
}
for name, (task, _) in others.items():
    begin(name, task)
    steps.append(ask(name, "new agent"))
for i in range(2):
    for name, (_, files) in others.items():
        steps.append(ask(name, "tool result", *tools("", read(*files[i]))))

# The main agent returns after them.
fix = ("edit_file", {"path": "crates/kv/src/cells.rs", "old": "position + 1", "new": "position"}, "1 place was changed.")
steps.append(ask("main", "return", *tools("The end of an uncommitted step counts one row too many.", fix)))
for name in others:
    steps.append(ask(name, "return", assistant("I have read enough to begin."), user("Begin, and keep it short.")))

# Its context is compacted.
summary = (
    "Summary of the conversation so far. Task: a conversation in cells loses one row when it is rewound right after a fork. Looked at: "
    "cells.rs, operations.rs, error.rs, the callers of rewind. Cause: the end of a step that is not committed counts one row too many. Done: "
    "cells.rs was changed in one place. Left: a test that fails without the change, the whole test run, the commit."
)
steps.append({"replace": "main", "from": 1, "messages": [user(summary)]})
steps.append(ask("main", "compaction"))
steps.append(ask("main", "tool result", *tools("Now the test.", read("crates/kv/src/cells.rs", 131, 190))))
# An old result is pruned in the middle of another conversation.
first_result = next(step for step in steps if step.get("ask") == "review" and step["add"])["add"][1]
steps.append({"replace": "review", "from": 3, "to": 4, "messages": [{**first_result, "content": "[pruned]"}]})
steps.append(ask("review", "pruned", assistant("The planner does three things."), user("Which of them goes first?")))
# All of them at once, and one after the other again.
last = ["main", *list(others)[1:]]
steps.append({"together": [ask(name, "return", assistant("I go on."), user("What is left?")) for name in last]})
for name in reversed(last):
    steps.append(ask(name, "return", assistant("One thing is left."), user("Finish it.")))

trace = {
    "format": 1,
    "about": "a coding agent: tools with the contents of files, branches, a cancelled prompt, compaction, five other agents",
    "context": 8192,
    "max_tokens": 1,
    "texts": texts,
    "tools": TOOLS,
    "steps": steps,
}
Path(__file__).with_name("coding.json").write_text(json.dumps(trace, indent=1, ensure_ascii=False) + "\n")
