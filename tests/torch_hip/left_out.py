"""What a reduced build of torch does not have raises an error that names it."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F


def main() -> int:
    x = torch.rand(2, 3, 4, 4).cuda()
    # No kernel for the card, a kernel that is not compiled behind an operation that is there, and a function that is not linked.
    for name, compute in {
        "aten::_fft_r2c": lambda: torch.fft.rfft(x),
        "aten::erfinv": lambda: torch.erfinv(x),
        "aten::median": lambda: torch.median(x),
        "mish": lambda: F.mish(x),
        "reflection_pad2d": lambda: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    }.items():
        try:
            compute()
        except (RuntimeError, NotImplementedError) as error:
            text = str(error)
            if name.removeprefix("aten::") not in text:
                print(f"wrong: {name} is not named in: {text[:300]}")
                return 1
            print(f"{name}: {text.splitlines()[0][:150]}")
        else:
            print(f"{name} is there: a full build")
    print("right: what is left out is named")
    return 0


if __name__ == "__main__":
    sys.exit(main())
