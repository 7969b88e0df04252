"""A tiny language model with random weights, as a GGUF file in half precision: two layers, 256 wide, an alphabet's pairs as its words.

llama-quantize makes the others of it. It says nothing of sense, but always the same.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path

WIDTH, HEADS, LAYERS, HIDDEN, CONTEXT = 256, 4, 2, 512, 128
#: What GGUF calls the types of values and of tensors.
INTEGER, SIGNED, FLOAT, TEXT, LIST = 4, 5, 6, 8, 9
F32, F16 = 0, 1
ALIGNMENT = 32
#: Kinds of words: normal, unknown, control, byte.
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def words() -> list[tuple[str, int]]:
    """The model's words with their kinds."""
    pairs = [chr(97 + at % 26) + chr(97 + at // 26) for at in range(253)]
    special = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    return special + [(f"<0x{byte:02X}>", BYTE) for byte in range(256)] + [(pair, NORMAL) for pair in pairs]


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def value(key: str, kind: int, content: int | float | str | list, items: int = 0) -> bytes:
    """A key with its value; of a list, items is the type of its members."""
    formats = {INTEGER: "<I", SIGNED: "<i", FLOAT: "<f"}

    def packed(kind: int, one: int | float | str) -> bytes:
        return text(one) if kind == TEXT else struct.pack(formats[kind], one)

    if kind == LIST:
        body = struct.pack("<IQ", items, len(content)) + b"".join(packed(items, one) for one in content)
    else:
        body = packed(kind, content)
    return text(key) + struct.pack("<I", kind) + body


def values() -> list[bytes]:
    vocabulary = words()
    sizes = {
        "context_length": CONTEXT,
        "embedding_length": WIDTH,
        "block_count": LAYERS,
        "feed_forward_length": HIDDEN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": HEADS,
        "rope.dimension_count": WIDTH // HEADS,
        "vocab_size": len(vocabulary),
    }
    special = {"bos": 1, "eos": 2, "unknown": 0}
    return [
        value("general.architecture", TEXT, "llama"),
        value("general.name", TEXT, "tiny"),
        *(value(f"llama.{name}", INTEGER, size) for name, size in sizes.items()),
        value("llama.attention.layer_norm_rms_epsilon", FLOAT, 1e-5),
        value("tokenizer.ggml.model", TEXT, "llama"),
        value("tokenizer.ggml.tokens", LIST, [word for word, _ in vocabulary], TEXT),
        value("tokenizer.ggml.scores", LIST, [0.0] * len(vocabulary), FLOAT),
        value("tokenizer.ggml.token_type", LIST, [kind for _, kind in vocabulary], SIGNED),
        *(value(f"tokenizer.ggml.{name}_token_id", INTEGER, at) for name, at in special.items()),
    ]


def tensors() -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes, the innermost size first; those with one size are scales."""
    vocabulary = len(words())
    found = [("token_embd", (WIDTH, vocabulary)), ("output", (WIDTH, vocabulary)), ("output_norm", (WIDTH,))]
    for layer in range(LAYERS):
        one = [(name, (WIDTH, WIDTH)) for name in ("attn_q", "attn_k", "attn_v", "attn_output")]
        one += [("ffn_gate", (WIDTH, HIDDEN)), ("ffn_up", (WIDTH, HIDDEN)), ("ffn_down", (HIDDEN, WIDTH))]
        one += [("attn_norm", (WIDTH,)), ("ffn_norm", (WIDTH,))]
        found += [(f"blk.{layer}.{name}", shape) for name, shape in one]
    return [(f"{name}.weight", shape) for name, shape in found]


def weights() -> dict[str, list[float]]:
    """Matrices for which rounding does not change the text, and an error in any layer does.

    A word enters by the first half of a row and is read from the second, to which only attention and the hidden layers lead. The words
    that attention weighs most decide; with all weights random, quantized models of the CPU and of a GPU soon wrote different texts.
    """
    numbers = random.Random(2)
    half = WIDTH // 2

    def matrix(rows: int, scale: float, columns: int = WIDTH) -> list[list[float]]:
        return [[numbers.gauss(0, scale) for _ in range(columns)] for _ in range(rows)]

    vocabulary = len(words())
    inward = matrix(vocabulary, 1.0, half)
    found = {
        "token_embd": [[*row, *[0.0] * half] for row in inward],
        "output": [[*[0.0] * half, *inward[(at * 37 + 11) % vocabulary]] for at in range(vocabulary)],
    }
    for layer in range(LAYERS):
        seen = matrix(WIDTH, 1 / 16, half)
        found[f"blk.{layer}.attn_q"] = matrix(WIDTH, 0.08)
        found[f"blk.{layer}.attn_k"] = matrix(WIDTH, 0.08)
        found[f"blk.{layer}.attn_v"] = [[*row, *[0.0] * half] for row in seen]
        found[f"blk.{layer}.attn_output"] = [[0.0] * WIDTH] * half + [[row[at] for row in seen] for at in range(half)]
        found[f"blk.{layer}.ffn_gate"] = matrix(HIDDEN, 0.03)
        found[f"blk.{layer}.ffn_up"] = matrix(HIDDEN, 0.03)
        found[f"blk.{layer}.ffn_down"] = matrix(WIDTH, 0.03, HIDDEN)
    return {f"{name}.weight": [one for row in rows for one in row] for name, rows in found.items()}


def write(path: Path) -> None:
    """Writes the model."""
    matrices = weights()
    heads, data = b"", b""
    for name, shape in tensors():
        if name in matrices:
            kind, content = F16, struct.pack(f"<{len(matrices[name])}e", *matrices[name])
        else:
            kind, content = F32, struct.pack(f"<{shape[0]}f", *[1.0] * shape[0])
        heads += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(data))
        data += content + bytes(-len(content) % ALIGNMENT)
    written = values()
    start = b"GGUF" + struct.pack("<IQQ", 3, len(tensors()), len(written)) + b"".join(written) + heads
    path.write_bytes(start + bytes(-len(start) % ALIGNMENT) + data)
