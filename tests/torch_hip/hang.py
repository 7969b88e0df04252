"""A convolution of torch's that hangs in MIOpen, under `unhang run` with a restart: `python3 hang.py UNHANG`.

For a card with `--hazards hang`, spoofed, without the shield: MIOpen's first kernel that breaks a rule never ends. The watchdog has to name the
convolution and end the program; started again once, it must not meet MIOpen there, and come to right results.
"""

from __future__ import annotations

import os
import subprocess
import sys

KEY = "forward:f32:nchw:1x16x16x16:16x3x3:s1x1:p1x1:d1x1:g1"
PROGRAM = """
import torch, torch.nn.functional as F
torch.manual_seed(0)
x, w = torch.randn(1, 16, 16, 16), torch.randn(16, 16, 3, 3)
y = F.conv2d(x.cuda(), w.cuda(), padding=1).cpu()
error = float((y - F.conv2d(x, w, padding=1)).abs().max())
print(f"computed, error {error:.0e}", flush=True)
assert error < 1e-4
"""


def main() -> int:
    unhang = sys.argv[1]
    # Copies by SDMA: HIP's own copy kernel would hang before MIOpen is asked. `selective` leaves small convolutions to MIOpen.
    environment = {**os.environ, "GPU_FORCE_BLIT_COPY_SIZE": "0", "UNHANG_SHIELD": "0"}
    deadlines = ["--hang-deadline", "20s", "--host-deadline", "40s", "--outside-deadline", "60s"]
    options = [*deadlines, "--strategy", "selective", "--restarts", "1", "--restart-delay", "1s"]
    ran = subprocess.run(
        [unhang, "run", *options, "--", sys.executable, "-c", PROGRAM],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    print(ran.stdout)
    if f"HANG in a convolution: {KEY} on miopen" not in ran.stdout:
        print(f"wrong: {KEY} is not named; `unhang run` ended with {ran.returncode}")
        return 1
    if ran.returncode != 0 or "computed, error" not in ran.stdout:
        print(f"wrong: started again, it ended with {ran.returncode}")
        return 1
    print("right: named, started again, and computed elsewhere")
    return 0


if __name__ == "__main__":
    sys.exit(main())
