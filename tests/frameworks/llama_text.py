"""llama.cpp, unmodified, on the card of this process: what a tiny model writes, compared with llama.cpp's own CPU backend.

    python3 llama_text.py

The model comes from tiny_model.py, quantized by llama-quantize. The most likely word is always taken. Prints a line for each kind of weights,
with flash attention and without it. The last line says how many texts are as they should be.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import tiny_model

KINDS = ("F16", "Q4_0", "Q4_K_M")
#: More than eight words, so that matrix products of both kinds are used: of a prompt, and of one word after the other.
PROMPT = "abcabcabcabcdefghijklmnop"
WORDS = 12
#: Seconds for one text. A card takes less than one of them.
DEADLINE = 300


def written(model: Path, attention: str, *where: str) -> bytes:
    """What llama.cpp writes after the prompt."""
    options = f"-n {WORDS} --temp 0 --seed 1 -no-cnv --no-warmup --no-display-prompt -fa {attention}"
    command = ["llama-completion", "-m", str(model), "-p", PROMPT, *options.split(), *where]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE)
    # What the card and unhang say, too.
    sys.stderr.write(done.stderr.decode(errors="replace"))
    if done.returncode != 0:
        raise RuntimeError(f"llama-completion {' '.join(where)} ended with {done.returncode}")
    return done.stdout


def main() -> int:
    good, texts = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "F16.gguf"
        tiny_model.write(plain)
        for kind in KINDS:
            model = Path(folder) / f"{kind}.gguf"
            if kind != "F16":
                subprocess.run(
                    ["llama-quantize", plain, model, kind], check=True, capture_output=True, timeout=DEADLINE
                )
            for attention in ("off", "on"):
                texts += 1
                name = f"{kind}, flash attention {attention}"
                try:
                    # A device that is not there is an error; without the name the CPU would compute.
                    card = written(model, attention, "--device", "ROCm0", "-ngl", "99")
                    cpu = written(model, attention, "--device", "none")
                except (RuntimeError, subprocess.TimeoutExpired) as failed:
                    print(f"failed: {name}: {failed}", flush=True)
                    continue
                is_right = card == cpu and bool(card.strip())
                good += is_right
                difference = "" if card == cpu else f", and the CPU {cpu!r}"
                print(f"{'right' if is_right else 'wrong'}: {name}: the card wrote {card!r}{difference}", flush=True)
    print(f"{good} of {texts} texts are as they should be", flush=True)
    return 0 if good == texts else 1


if __name__ == "__main__":
    sys.exit(main())
