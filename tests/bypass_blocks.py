"""The Python blocks of the bypass's document, as its users copied them; private folders are set aside.

They are run as they stand: the test provides what they presuppose (a model, imports of the block before), and on a machine
without a GPU lets ``.cuda()`` return the tensor itself.
"""

STRATEGIES = [
    """
from conv2d_fallback import enable_miopen_bypass, FallbackStrategy

enable_miopen_bypass(strategy=FallbackStrategy.CPU_FALLBACK)
""",
    """
enable_miopen_bypass(strategy=FallbackStrategy.SELECTIVE)
""",
    """
enable_miopen_bypass(strategy=FallbackStrategy.AUTO)  # Default
""",
]

QUICK_START = [
    """
import sys
sys.path.insert(0, '/path/to/miopen_bypass')

from conv2d_fallback import enable_miopen_bypass

# Enable with auto strategy
enable_miopen_bypass()

# Now create your model - all Conv2d layers will be safe
model = YourModel()
model = model.cuda()  # Safe to move to GPU!
""",
    """
from conv2d_fallback import patch_model

model = YourModel()
model = patch_model(model)  # Replaces all Conv2d with SafeConv2d
model = model.cuda()
""",
    """
from conv2d_fallback import SafeConv2d

# Replace nn.Conv2d with SafeConv2d
conv = SafeConv2d(3, 64, kernel_size=3, padding=1)
conv = conv.cuda()
""",
]

CONFIGURATION = """
from conv2d_fallback import Conv2dBypassConfig, FallbackStrategy

config = Conv2dBypassConfig(
    strategy=FallbackStrategy.AUTO,      # Fallback strategy
    size_threshold=42,                   # Size boundary for bypass
    enable_implicit_gemm=True,           # Set IMPLICIT_GEMM env var
    cpu_fallback_enabled=True,           # Allow CPU fallback
    verbose=True,                        # Print bypass info
    cache_decisions=True                 # Cache bypass decisions
)
"""

REPORT = """
from conv2d_fallback import print_bypass_report

# After training
print_bypass_report(model)
"""

TROUBLESHOOTING = [
    """
stats = model.conv1.get_bypass_stats()
print(f"Bypass rate: {stats['bypass_rate']:.1f}%")
""",
    """
config = Conv2dBypassConfig(strategy=FallbackStrategy.IMPLICIT_GEMM)
""",
    """
# Test script
conv = SafeConv2d(3, 64, kernel_size=3).cuda()
x = torch.randn(1, 3, 64, 64, requires_grad=True).cuda()
y = conv(x)
y.sum().backward()

assert x.grad is not None, "Input gradients missing"
assert conv.weight.grad is not None, "Weight gradients missing"
print("✅ Gradients OK!")
""",
]

# The file name of the weights, the data set, the number of epochs and the device are set aside by the test.
TRAINING = """
# train_patched.py
import sys
sys.path.insert(0, '/path/to/rocm-patch/src/patches/miopen_bypass')

from conv2d_fallback import enable_miopen_bypass, FallbackStrategy

# Enable MIOpen bypass
enable_miopen_bypass(strategy=FallbackStrategy.AUTO)

# Now train normally
from ultralytics import YOLO

model = YOLO('yolov8n.pt')
results = model.train(
    data='ltdv2.yaml',
    epochs=50,
    imgsz=640,
    batch=4,
    device=0
)
"""
