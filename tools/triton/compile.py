"""Compiles the kernels of ``kernels.py`` for a chip without a GPU, with and without buffer operations.

Run it with the Python that has Triton: ``python compile.py FOLDER``. Writes KERNEL.SETTING.hsaco, where SETTING is
``default`` or ``no-buffers`` (AMDGCN_USE_BUFFER_OPS=0), and prints the outcome of each.
"""

import os
import sys
import tempfile
from pathlib import Path

CHIP = "gfx1010"
POINTER = "*fp32"
# Arguments in order: pointers, integers, floats, then compile-time constants.
KERNELS = {
    "add": ({"x": POINTER, "y": POINTER, "out": POINTER, "n": "i32"}, {"BLOCK": 256}),
    "total": ({"x": POINTER, "out": POINTER, "n": "i32"}, {"BLOCK": 256}),
    "softmax": ({"x": POINTER, "out": POINTER, "columns": "i32"}, {"BLOCK": 128}),
    "layer_norm": (
        {"x": POINTER, "weight": POINTER, "bias": POINTER, "out": POINTER, "columns": "i32", "epsilon": "fp32"},
        {"BLOCK": 128},
    ),
    "attention": (
        {"q": POINTER, "k": POINTER, "v": POINTER, "out": POINTER, "keys": "i32", "scale": "fp32"},
        {"WIDTH": 32, "BLOCK": 16},
    ),
    "matmul": ({"a": POINTER, "b": POINTER, "out": POINTER}, {"BLOCK": 32}),
}


def compile_all(folder: Path, setting: str) -> None:
    """Compiles every kernel in this process's setting."""
    import kernels
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    for name, (arguments, constants) in KERNELS.items():
        signature = {**arguments, **dict.fromkeys(constants, "constexpr")}
        # What the launcher knows about pointers: they are aligned, and to memory below 2 GiB.
        attributes = [["tt.divisibility", 16], ["tt.pointer_range", 32]]
        pointers = {(place,): attributes for place, kind in enumerate(arguments.values()) if kind == POINTER}
        source = ASTSource(getattr(kernels, name), signature, constants, pointers)
        try:
            compiled = compile(source, target=GPUTarget("hip", CHIP, 32), options={"num_warps": 4})
        except Exception as error:  # Triton raises what its passes throw; the other kernels are still needed.
            print(f"{name} {setting}: not compiled: {type(error).__name__}: {str(error).splitlines()[-1]}")
            continue
        text, binary = compiled.asm["amdgcn"], compiled.asm["hsaco"]
        path = folder / f"{name}.{setting}.hsaco"
        path.with_suffix(".part").write_bytes(binary)
        path.with_suffix(".part").replace(path)
        buffers = sum(line.strip().startswith("buffer_") for line in text.splitlines())
        print(f"{name} {setting}: {len(binary)} bytes, {buffers} buffer accesses, descriptors {'0x27000' in text}")


def main() -> None:
    """One process per setting: Triton reads the variable once, and its cache must not mix them."""
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if len(sys.argv) > 2:
        compile_all(folder, sys.argv[2])
        return
    import subprocess

    for setting, variables in (("default", {}), ("no-buffers", {"AMDGCN_USE_BUFFER_OPS": "0"})):
        with tempfile.TemporaryDirectory() as cache:
            environment = {key: value for key, value in os.environ.items() if key != "AMDGCN_USE_BUFFER_OPS"}
            environment |= {**variables, "TRITON_CACHE_DIR": cache}
            subprocess.run([sys.executable, __file__, str(folder), setting], env=environment, check=True, timeout=600)


if __name__ == "__main__":
    main()
