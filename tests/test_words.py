"""``tools/check-words`` finds what ``tools/words.toml`` has, where a reader reads it and nowhere else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="tools/check-words needs Python 3.11")


def check(*files: Path) -> tuple[int, list[str]]:
    """The exit code, and what was printed."""
    command = [sys.executable, str(ROOT / "tools" / "check-words"), *map(str, files)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
    return ended.returncode, ended.stdout.splitlines()


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("page.md", "# Title\n\nThe file is mended.\n", 3),
        ("page.md", "It holds so\nmany registers.\n", 1),
        ("page.md", "The file is beside the program.\n", 1),
        ("code.rs", "fn mended() {}\n/// The kernel lies.\nfn other() {}\n", 2),
        ("code.rs", 'fn other() { say("ok"); say("it is\\\n    told"); }\n', 1),
        ("code.rs", "// It is seen, and\n// by and by it ends.\n", 2),
        ("code.rs", 'const RAW: &str = r#"a "quoted" word, besides"#;\n', 1),
        ("code.py", 'def mended():\n    """Text.\n\n    It comes back late.\n    """\n', 4),
        ("code.py", "mended = 1  # that is none\n", 1),
    ],
)
def test_a_word_is_found_with_its_line_and_what_to_write(tmp_path: Path, name: str, content: str, line: int) -> None:
    page = tmp_path / name
    page.write_text(content)
    code, printed = check(page)
    assert code == 1
    assert len(printed) == 2, printed
    assert printed[0].startswith(f'{page}:{line}: "')
    assert "instead: " in printed[0]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("page.md", "The file was amended. Files are families: one of its own tests.\n\nIt holds so\n\nmany.\n"),
        ("page.md", "What people type: training never comes back.\n"),
        ("code.rs", "// Written anew, beside the file: a word for pages only.\n"),
        ("code.rs", "let mended = lies[besides]; // fine\nlet quote = '\"'; let told = is(told);\n"),
        ("code.py", "mended = besides\n# so\nx = 1\n# many\n"),
    ],
)
def test_code_and_other_words_are_left_alone(tmp_path: Path, name: str, content: str) -> None:
    page = tmp_path / name
    page.write_text(content)
    assert check(page) == (0, ["1 files, no word to replace"])


def test_long_lines_of_prose_are_found_and_tables_and_code_are_left_alone(tmp_path: Path) -> None:
    long = "word " * 20 + "end."
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{long}\n")
    code, printed = check(page)
    assert code == 1
    assert printed[0].startswith(f"{page}:3: {len(long)} columns; instead: ")
    page.write_text(f"# Title\n\n| {long} |\n\n```\n{long}\n```\n\n{long[:100]}\n")
    assert check(page) == (0, ["1 files, no word to replace"])


def test_what_is_covered_has_none() -> None:
    code, printed = check()
    assert code == 0, "\n".join(printed)
