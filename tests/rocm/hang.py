"""A convolution of the real MIOpen that hangs, under `unhang run`: `python3 hang.py UNHANG MIOPENDRIVER`.

For a card with `--hazards hang`. Spoofed and without the shield the first kernel of MIOpen's that breaks a rule never ends: the watchdog at
MIOpen's boundary has to name the convolution and end the program with code 86. In the other settings nothing breaks a rule, and
MIOpenDriver has to come to its end.
"""

from __future__ import annotations

import os
import subprocess
import sys

KEY = "forward:f32:nchw:1x16x16x16:16x3x3:s1x1:p1x1:d1x1:g1"
CONVOLUTION = "-n 1 -c 16 -H 16 -W 16 -k 16 -y 3 -x 3 -p 1 -q 1 -F 1 -i 1 -V 1 -t 0"


def main() -> int:
    unhang, driver = sys.argv[1:]
    hangs = "HSA_OVERRIDE_GFX_VERSION" in os.environ and "HSA_TOOLS_LIB" not in os.environ
    # Copies by SDMA: HIP's own copy kernel would hang before MIOpen is asked. `selective` leaves small convolutions to MIOpen.
    environment = {**os.environ, "GPU_FORCE_BLIT_COPY_SIZE": "0"}
    if hangs:
        environment["UNHANG_SHIELD"] = "0"
    command = [unhang, "run", "--hang-deadline", "20s", "--strategy", "selective", "--"]
    ran = subprocess.run(
        [*command, driver, "conv", *CONVOLUTION.split()],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    print(ran.stdout)
    expected = 86 if hangs else 0
    if ran.returncode != expected:
        print(f"wrong: `unhang run` ended with {ran.returncode}, not with {expected}")
        return 1
    if hangs and f"HANG in a convolution: {KEY} on miopen" not in ran.stdout:
        print(f"wrong: {KEY} is not named")
        return 1
    print(f"right: {'named and ended with 86' if hangs else 'nothing hangs'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
