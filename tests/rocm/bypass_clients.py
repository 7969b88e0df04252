"""Clients that bind the real MIOpen as frameworks do, on the card of this process: every convolution has to be ours, and right.

    python3 bypass_clients.py LIBRARY AUDIT

The client is that of the library's own tests (crates/unhang-miopen/tests/stand_in/client.c), compiled here against the HIP and the MIOpen
that are installed: linked with a DT_RPATH like torch, by dlsym like XLA, and with solutions alone (immediate mode) like
JAX. Each runs with LIBRARY (libunhang_miopen.so) preloaded, and with the loader audited (AUDIT,
libunhang_miopen_audit.so). It compares every result with its own sums. With results made wrong on purpose each has to
fail.
"""

import glob
import os
import re
import subprocess
import sys
import tempfile

SOURCES = "/repository/crates/unhang-miopen/tests/stand_in"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
#: How it is bound, and the part of the client that is run.
CLIENTS = (
    ("bound like torch", "libtorch_like.so", "find"),
    ("bound like XLA", "libxla_like.so", "find"),
    ("bound like JAX", "libtorch_like.so", "immediate only"),
    ("bound like JAX, by dlsym", "libxla_like.so", "immediate only"),
    ("fusing, and taking the parts", "libtorch_like.so", "fused"),
)
DEADLINE = 600


def newest(stem: str) -> str:
    found = sorted(path for path in glob.glob(f"{LIBRARIES}/{stem}.so.*") if re.search(r"\.so\.\d+$", path))
    if not found:
        sys.exit(f"skipped: there is no {stem} in {LIBRARIES}")
    return found[-1]


def build(folder: str) -> None:
    """The clients and the program that loads them."""
    hip, miopen = newest("libamdhip64"), newest("libMIOpen")
    rpath = ["-Wl,--disable-new-dtags", f"-Wl,-rpath,{LIBRARIES}"]
    common = ["clang-21", "-w", "-std=gnu17", "-fPIC"]
    library = [*common, "-shared", "-DREAL_HIP", f"{SOURCES}/client.c", *rpath, hip]
    for command in (
        [*library, miopen, "-o", f"{folder}/libtorch_like.so"],
        [*library, "-DBY_DLSYM", "-o", f"{folder}/libxla_like.so"],
        [*common, f"{SOURCES}/program.c", "-o", f"{folder}/program"],
    ):
        subprocess.run(command, check=True, timeout=120)


def run(folder: str, client: str, part: str, route: dict[str, str], *, wrong: bool) -> tuple[bool, str]:
    environment = {
        **os.environ,
        **route,
        "UNHANG_SETTINGS": "verbose=True",
        "UNHANG_MIOPEN_WRONG": "1" if wrong else "0",
    }
    words = [f"{folder}/program", f"{folder}/{client}", part]
    try:
        ran = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        return False, f"no end within {DEADLINE} s"
    by_us = sum(int(count) for count in re.findall(r"asked for (\d+) convolutions that jit computed", ran.stderr))
    right = ran.returncode == 0 and ran.stdout == "right\n" and by_us == (1 if part == "fused" else 3)
    # Wrong on purpose it fails at the first result, which was ours.
    found_out = "and should be" in ran.stderr and by_us > 0
    return (found_out if wrong else right), " / ".join(ran.stderr.splitlines()[-3:])[:400]


def main() -> int:
    library, audit = sys.argv[1:3]
    before = os.environ.get("LD_PRELOAD")
    routes = {
        "preloaded": {"LD_PRELOAD": ":".join(it for it in (before, library) if it)},
        "audited": {"LD_AUDIT": audit},
    }
    passed = 0
    with tempfile.TemporaryDirectory() as folder:
        build(folder)
        for how, client, part in CLIENTS:
            for name, route in routes.items():
                for wrong in (False, True):
                    good, detail = run(folder, client, part, route, wrong=wrong)
                    passed += good
                    what = "found out to be wrong, as made" if wrong else "right"
                    print(
                        f"{what if good else 'NOT ' + what}: {how}, {name}{'' if good else ': ' + detail}", flush=True
                    )
    total = 2 * len(CLIENTS) * len(routes)
    print(f"{passed} of {total} clients as they should be")
    return 0 if passed == total else 1


if __name__ == "__main__":
    sys.exit(main())
