"""Compares what runs of a training script saved: `python3 compare.py FOUND SINGLE DOUBLE`; prints a line that begins with right or wrong.

DOUBLE is the same training on the CPU in double precision, SINGLE in single. Rounding grows from layer to layer and from step to step, in
some models a lot: what was found counts as right if it is not much further from DOUBLE than SINGLE is.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

#: How much further it may be: sums are added up in another order.
FACTOR, FLOOR = 8.0, 1e-5


def distances(found: dict[str, Any], exact: dict[str, Any]) -> tuple[float, float]:
    """Of the losses, and of the tensor that differs most, by its largest element where that is over 1."""
    losses = max(abs(mine - theirs) / max(1.0, abs(theirs)) for mine, theirs in zip(found["losses"], exact["losses"]))
    tensors = [0.0]
    for name, theirs in exact["model"].items():
        size = theirs.double().abs().max().clamp(min=1.0)
        tensors.append(float((found["model"][name].double() - theirs.double()).abs().max() / size))
    # A NaN is far away.
    return (losses if losses == losses else float("inf")), max(float("inf") if far != far else far for far in tensors)


def main() -> int:
    found, single, double = (torch.load(path, weights_only=False) for path in sys.argv[1:4])
    same = len(found["losses"]) == len(double["losses"]) and found["model"].keys() == double["model"].keys()
    losses, tensors = distances(found, double)
    cpu_losses, cpu_tensors = distances(single, double)
    good = same and losses <= FACTOR * cpu_losses + FLOOR and tensors <= FACTOR * cpu_tensors + FLOOR
    print(
        f"{'right' if good else 'wrong'}: losses {' '.join(f'{loss:.4f}' for loss in found['losses'])} within {losses:.0e} of the reference "
        f"(the CPU itself {cpu_losses:.0e}), {len(double['model'])} tensors within {tensors:.0e} (the CPU itself {cpu_tensors:.0e})"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
