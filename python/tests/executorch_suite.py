"""Runs ExecuTorch's own cache tests, unchanged, on kvark's caches.

    python python/tests/executorch_suite.py [pytest arguments]

Needs kvark, executorch and pytest. The file of tests is the one in the installed package; only the two reference caches
that it imports are replaced before it is imported.
"""

import sys
from pathlib import Path

import pytest
from executorch.extension.llm.cache import reference_cache

import kvark.executorch


def main() -> int:
    reference_cache.ContiguousReferenceCache = kvark.executorch.ContiguousCache
    reference_cache.CellReferenceCache = kvark.executorch.CellCache
    tests = Path(reference_cache.__file__).with_name("test_update_and_attend.py")
    return pytest.main([str(tests), "-p", "no:cacheprovider", "-q", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
