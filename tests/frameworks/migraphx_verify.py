"""MIGraphX's own tests of convolutions, unmodified, on the card of this process: each compares the card with MIGraphX's
reference on the CPU.

    python3 migraphx_verify.py [CASE…]

MIGraphX asks MIOpen by "find 2.0" for each of these convolutions. Prints a line for each case. With
UNHANG_MIOPEN_WRONG=1 every case has to be wrong but those in bf16, which are left out: MIGraphX allows more error there
than is made on purpose. The last line says how many cases are as they should be.
"""

import os
import re
import subprocess
import sys

TESTS = "/usr/libexec/migraphx/migraphx-tests"
DEADLINE = 1700


def of(name, *types):
    """A case in several types, as MIGraphX names it."""
    return [f"{name}<migraphx::shape::{kind}_type>" for kind in types]


CASES = [
    *of("test_conv", "float", "bf16"),
    "test_conv3d",
    *of("test_conv_add", "float", "bf16"),
    *of("test_conv_add_1x1_diff_strides", "float", "bf16"),
    *of("test_conv_add_relu", "float", "bf16"),
    *of("test_conv_add_tune", "float", "half", "bf16"),
    *of("test_conv_bias_clipped_relu", "float"),
    "test_conv_concat",
    "test_conv_concat_group",
    *of("test_conv_group_add", "float", "bf16"),
    *of("test_conv_pooling", "float"),
    *of("test_conv_relu", "float", "half", "bf16"),
    *of("test_convolution_backwards", "float", "half", "bf16"),
    "test_convolution_backwards_1d",
    *of("test_convolution_backwards_2d_alt", "float"),
    *of("test_convolution_backwards_2d_group", "float", "half", "bf16"),
    *of("test_convolution_backwards_2x3", "float"),
    "test_convolution_backwards_3d",
    "test_group_conv",
    *of("test_pointwise_conv_nhwc", "float"),
    "test_squeeze_conv_relu",
    "test_unsqueeze_conv_relu",
]


def main() -> int:
    is_wrong = os.environ.get("UNHANG_MIOPEN_WRONG") == "1"
    wanted = [case for case in sys.argv[1:] or CASES if not (is_wrong and "bf16" in case)]
    command = [f"{TESTS}/test_verify", "--continue", *wanted]
    played = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=DEADLINE)
    said = played.stdout + played.stderr
    found = re.findall(r"^\[ +(COMPLETE|FAILED) +\] (\S.*?) \([\d.]+ms\)", said, re.MULTILINE)
    ended = {case: how for how, case in found}
    good = 0
    for case in wanted:
        how = {"COMPLETE": "right", "FAILED": "wrong"}.get(ended.get(case, ""), "not run")
        good += how == ("wrong" if is_wrong else "right")
        print(f"{how}: {case}", flush=True)
    if good < len(wanted):
        print(said[-4000:], flush=True)
    print(f"{good} of {len(wanted)} cases are as they should be", flush=True)
    return 0 if wanted and good == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
