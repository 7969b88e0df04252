"""Sums in double precision: PyTorch's local memory for them begins one byte off, which gfx1010 gets wrong."""

import torch

line = torch.full((5000,), 0.5, dtype=torch.float64, device="cuda")
table = torch.full((64, 3000), 0.25, dtype=torch.float64, device="cuda")
assert line.sum().item() == 2500
assert table.sum(1).cpu().unique().tolist() == [750]
assert table.sum(0).cpu().unique().tolist() == [16]
print("right: sums in double precision")
