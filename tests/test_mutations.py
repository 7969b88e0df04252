"""Every change in ``tests/mutations.toml`` can still be made, and the tests that have to see it exist."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")

TESTS = Path(__file__).resolve().parent
SOURCES = {".rs": TESTS.parent / "crates" / "unhang-py" / "src", ".py": TESTS.parent / "python" / "unhang"}


def mutations() -> list[dict]:
    """The table."""
    import tomllib

    return tomllib.loads((TESTS / "mutations.toml").read_text())["mutation"]


def test_changes_can_be_made() -> None:
    for mutation in mutations():
        source = SOURCES[Path(mutation["file"]).suffix] / mutation["file"]
        found = source.read_text().count(mutation["old"])
        assert found == 1, f"{mutation['promise']}: {mutation['file']} has {mutation['old']!r} {found} times"


def test_their_tests_exist() -> None:
    for mutation in mutations():
        for test in mutation["tests"]:
            file, _, name = test.partition("::")
            defined = f"def {name.partition('[')[0]}(" if name else ""
            assert defined in (TESTS / file).read_text(), f"{mutation['promise']}: no test {test}"
