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
        ("kernel.cu", "int lies; // Where a pixel lies.\n", 1),
        ("page.js", 'const meanings = { hangs: "did not come back" };\n', 1),
        ("Makefile", 'mended:\n\t@echo "it is mended"\n', 2),
        ("run.sh", "mended=1  # for so long\n# at most\n", 1),
        ("requirements.txt", "mended==1\n# What is needed besides torch.\n", 2),
        ("doctor.snap", "error: the card is mended\n", 1),
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
        ("kernel.cu", "int mended = lies(besides); // fine\n"),
        ("run.sh", "mended=$besides#so many\n# so\nlies\n# many\n"),
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


def test_long_sentences_are_found_where_they_begin(tmp_path: Path) -> None:
    words = ["word"] * 26
    page = tmp_path / "page.md"
    for content, line in [
        (f"# Title\n\nShort one. {' '.join(words[:13])}\n{' '.join(words[13:])}.\n", 3),
        (f"* fine.\n* {' '.join(words[:13])}\n  {' '.join(words[13:])}\n", 2),
        (f"| a |\n|---|\n| {' '.join(words)} |\n", 3),
    ]:
        page.write_text(content)
        code, printed = check(page)
        assert (code, len(printed)) == (1, 2), printed
        assert printed[0].startswith(f'{page}:{line}: 26 words ("word word word word word word …"); instead: ')


def test_code_links_lists_and_two_sentences_are_not_long_sentences(tmp_path: Path) -> None:
    words = " ".join(["two"] * 20)
    page = tmp_path / "page.md"
    prose = f"{words}:\n{words}.\n{words}!\n\n* {words}\n* {words}\n\n| {words} | {words}; {words} |\n\n"
    code = f"```\n{words}\n{words}\n```\n\n"
    spans = f"{words}\n`one two three four five six`, `seven`\nand `eight` [link](a_target.md#of-many-words).\n"
    page.write_text(prose + code + spans)
    assert check(page) == (0, ["1 files, no word to replace"])


LONG = " ".join(["word"] * 13), " ".join(["word"] * 13) + "."


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("code.rs", "fn one() {{}}\n    // {}\n    // {}\n", 2),
        ("code.rs", "/// Short.\n///\n/// {}\n/// {}\nfn one() {{}}\n", 3),
        ("code.rs", "//! * fine;\n//! * {}\n//!   {}\n", 2),
        ("code.rs", "let one = 1; // {}\n             // {}\n", 1),
        ("kernel.cu", "int one;\n/* {}\n * {} */\n", 2),
        ("code.py", "one = 1\n# {}\n# {}\n", 2),
        ("code.py", 'def one():\n    """Short.\n\n    {}\n    {}\n    """\n', 4),
        ("code.py", 'def one():\n    # Short.\n    """{}\n    {}"""\n', 3),
        ("code.pyi", 'one: int\n"""{}\n{}"""\n', 2),
        ("run.sh", "#!/bin/sh\n# {}\n# {}\n", 2),
        ("Cargo.toml", "[package]\n# {}\n# {}\n", 2),
        ("run", '#!/usr/bin/env python3\n"""{}\n{}"""\n', 2),
    ],
)
def test_long_sentences_of_comments_are_found(tmp_path: Path, name: str, content: str, line: int) -> None:
    source = tmp_path / name
    source.write_text(content.format(*LONG))
    code, printed = check(source)
    assert (code, len(printed)) == (1, 2), printed
    assert printed[0].startswith(f'{source}:{line}: 26 words ("word word word word word word …"); instead: ')


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("code.rs", "// {0}.\n// {1}\n"),
        ("code.rs", "// {0}\nlet one = 1;\n// {1}\n"),
        ("code.rs", "one, // {0}\ntwo, // {1}\n"),
        ("code.rs", "/// # {0}\n/// {1}\n"),
        ("code.rs", "/// * {0}\n/// * {1}\n///\n/// ```\n/// {0}\n/// {1}\n/// ```\n"),
        ("code.rs", 'let one = "{0} {1}";\nlet two = r#"{0} {1}"#;\n'),
        ("kernel.cu", "// {0} `{0}`, `{0}` and `{0}`\n"),
        ("code.py", 'one = (\n    "{0} {1}"\n)\ntwo = """{0} {1}"""\n'),
        ("code.py", 'def one():\n    """{0} ``{0}``\n\n        {0}\n        {1}\n    """\n'),
        ("run.sh", "#!/bin/sh {0}\n# {1}\n"),
        ("run.sh", "#   {0}   {0}\n#   run {0}    {1}\n".replace("{0} ", "one ")),
        ("run.sh", 'one="{0} {1}" # {1}\n'),
    ],
)
def test_code_lists_and_separate_comments_are_not_long_sentences(tmp_path: Path, name: str, content: str) -> None:
    source = tmp_path / name
    source.write_text(content.format(*LONG))
    assert check(source) == (0, ["1 files, no word to replace"])


def test_what_is_covered_has_none() -> None:
    code, printed = check()
    assert code == 0, "\n".join(printed)
