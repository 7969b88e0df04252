"""The convolutions of whole model zoos, as a file of problems: what owners run, drawn from outside.

    python tools/gpu-bench/population.py --out tools/gpu-bench/population.tsv [--only torchvision,timm]
    python tools/gpu-bench/population.py --out FILE --networks torchvision/resnet18,torchvision/vgg16 --batch 12

Every installed model definition of torchvision, ultralytics, timm, transformers and diffusers runs once on meta
tensors, so no weight is fetched and nothing is computed. Each distinct convolution that reaches torch's dispatcher is
recorded: the first model that has it, how many models do, and its key for a batch of 8 (1 for diffusion models and
speech). A zoo that is not installed is named and left out; so is a model that does not run on meta tensors. With
`--networks` each of those is written by itself, with how often it computes each convolution in a forward pass.
"""

from __future__ import annotations

import argparse
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

BATCH = 8
# Seconds that one model may take. A few definitions loop over data that meta tensors do not have.
DEADLINE = 60


class Recorder(TorchDispatchMode):
    """Records every convolution of one or two axes."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.convolution.default:
            key = key_of(*args)
            if key:
                self.keys[key] += 1
        return function(*args, **(kwargs or {}))


def key_of(
    image: torch.Tensor, weight: torch.Tensor, _bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int,
) -> str | None:  # fmt: skip
    """The problem's key as unhang writes it; one axis becomes the columns of a single row."""
    axes = image.dim() - 2
    if axes not in (1, 2) or min(image.shape) == 0:
        return None
    lead = [] if axes == 2 else [1]
    size = [*lead, *image.shape[2:]]
    kernel = [*lead, *weight.shape[2:]]
    out_channels = weight.shape[1] * groups if transposed else weight.shape[0]

    def pair(values: Any, neutral: int) -> str:
        values = list(values)
        return "x".join(str(value) for value in ([] if axes == 2 else [neutral]) + values * (axes // len(values)))

    shape = "x".join(map(str, [image.shape[0], image.shape[1], *size]))
    filters = "x".join(map(str, [out_channels, *kernel]))
    key = f"forward:f32:nchw:{shape}:{filters}:s{pair(stride, 1)}:p{pair(padding, 0)}:d{pair(dilation, 1)}:g{groups}"
    return key + f":t:o{pair(output_padding, 0)}" if transposed else key


Model = tuple[str, Callable[[], Any]]


def run(model: nn.Module, *inputs: Any, **named: Any) -> None:
    with torch.no_grad():
        model.to("meta").eval()(*inputs, **named)


def image(size: int, batch: int | None = None, channels: int = 3) -> torch.Tensor:
    return torch.empty(batch or BATCH, channels, size, size, device="meta")


def torchvision_models() -> Iterator[Model]:
    import torchvision

    for name in torchvision.models.list_models():
        if "video" in torchvision.models.get_model_builder(name).__module__ or name.startswith("quantized"):
            continue
        module = torchvision.models.get_model_builder(name).__module__
        if "detection" in module:
            yield name, lambda name=name: detection(name)
            continue
        size = 299 if "inception" in name else 520 if "segmentation" in module else 224
        if "optical_flow" in module:
            continue

        def build(name: str = name, size: int = size, module: str = module) -> None:
            extra = {"weights_backbone": None} if "segmentation" in module else {}
            run(torchvision.models.get_model(name, weights=None, **extra), image(size))

        yield name, build


def detection(name: str) -> None:
    """Backbone, pyramid and heads of a detector: its boxes need values that meta tensors do not have."""
    import torchvision

    model = torchvision.models.get_model(name, weights=None, weights_backbone=None).eval()
    with torch.no_grad():
        features = list(model.backbone(image(320 if "320" in name or "ssd" in name else 640)).values())
        if hasattr(model, "rpn"):
            model.rpn.head(features)
            if getattr(model.roi_heads, "mask_head", None) is not None:
                model.roi_heads.mask_predictor(model.roi_heads.mask_head(image(14, BATCH, features[0].shape[1])))
            if getattr(model.roi_heads, "keypoint_head", None) is not None:
                model.roi_heads.keypoint_predictor(
                    model.roi_heads.keypoint_head(image(14, BATCH, features[0].shape[1]))
                )
        else:
            model.head(features)


def ultralytics_models() -> Iterator[Model]:
    import ultralytics
    from ultralytics.nn.tasks import yaml_model_load

    folder = Path(ultralytics.__file__).parent / "cfg" / "models"
    for path in sorted(folder.glob("*/*.yaml")):
        scales = list((yaml_model_load(path).get("scales") or {"": 0}).keys()) if path.stem[-1:] else [""]
        for scale in scales:
            name = path.stem
            # yolov8-seg.yaml has its scale after the version: yolov8n-seg.yaml.
            head, dash, tail = name.partition("-")
            yield f"{head}{scale}{dash}{tail}", lambda path=path, scale=scale: yolo(path, scale)


def yolo(path: Path, scale: str) -> None:
    from ultralytics.nn import tasks

    settings = tasks.yaml_model_load(path)
    settings["scale"] = scale
    model, _ = tasks.parse_model(settings, ch=3, verbose=False)
    model = model.to("meta")
    outputs: list[Any] = []
    x: Any = image(224 if "cls" in path.stem else 640)
    with torch.no_grad():
        for layer in model.eval():
            source = layer.f
            given = (
                x
                if source == -1
                else outputs[source]
                if isinstance(source, int)
                else [x if j == -1 else outputs[j] for j in source]
            )
            x = layer.train()(given) if layer is model[-1] else layer(given)
            outputs.append(x)


def timm_models() -> Iterator[Model]:
    import timm

    for name in timm.list_models():

        def build(name: str = name) -> None:
            model = timm.create_model(name, pretrained=False)
            channels, high, wide = model.default_cfg.get("input_size", (3, 224, 224))
            run(model, torch.empty(BATCH, channels, high, wide, device="meta"))

        yield name, build


def diffusers_models() -> Iterator[Model]:
    import diffusers

    def unet(cross: int, **settings: Any) -> Callable[[], None]:
        def build() -> None:
            model = diffusers.UNet2DConditionModel(cross_attention_dim=cross, **settings)
            size = settings.get("sample_size", 64)
            added = {}
            if settings.get("addition_embed_type") == "text_time":
                added = {
                    "added_cond_kwargs": {
                        "text_embeds": torch.empty(1, 1280, device="meta"),
                        "time_ids": torch.empty(1, 6, device="meta"),
                    }
                }
            run(
                model,
                image(size, 1, 4),
                torch.empty(1, device="meta"),
                torch.empty(1, 77, cross, device="meta"),
                **added,
            )

        return build

    yield "sd15-unet", unet(768, sample_size=64)
    yield "sd21-unet-768", unet(1024, sample_size=96, attention_head_dim=[5, 10, 20, 20], use_linear_projection=True)
    yield "sdxl-unet", unet(
        2048, sample_size=128, block_out_channels=(320, 640, 1280), attention_head_dim=[5, 10, 20], use_linear_projection=True,
        transformer_layers_per_block=[1, 2, 10], addition_embed_type="text_time", addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip

    def vae(size: int, channels: int) -> Callable[[], None]:
        def build() -> None:
            model = diffusers.AutoencoderKL(
                block_out_channels=(128, 256, 512, 512), layers_per_block=2, latent_channels=channels,
                down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
            )  # fmt: skip
            with torch.no_grad():
                model.eval().encode(image(size, 1))
                model.decode(image(size // 8, 1, channels))

        return build

    yield "sd-vae-512", vae(512, 4)
    yield "sdxl-vae-1024", vae(1024, 4)
    yield "taesd", lambda: run(diffusers.AutoencoderTiny(), image(512, 1))


def transformers_models() -> Iterator[Model]:
    import transformers

    def audio(name: str) -> Callable[[], None]:
        def build() -> None:
            configuration = getattr(transformers, f"{name}Config")()
            model = getattr(transformers, f"{name}Model")(configuration)
            if name == "Whisper":
                run(model.encoder, torch.empty(1, configuration.num_mel_bins, 3000, device="meta"))
            else:
                extractor = getattr(model, "feature_extractor", None) or model.encoder
                run(
                    extractor,
                    torch.empty(1, 160000, device="meta")
                    if name != "Encodec"
                    else torch.empty(1, 1, 160000, device="meta"),
                )

        return build

    for name in ("Wav2Vec2", "Hubert", "WavLM", "Whisper", "Encodec"):
        yield name.lower(), audio(name)

    def vision(name: str, size: int = 224) -> Callable[[], None]:
        def build() -> None:
            model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")())
            run(model, image(size))

        return build

    for name in (
        "Segformer",
        "MobileViT",
        "MobileNetV1",
        "ResNet",
        "RegNet",
        "ConvNextV2",
        "PoolFormer",
        "VAN",
        "Cvt",
        "LevIT",
        "EfficientFormer",
        "FocalNet",
    ):
        if hasattr(transformers, f"{name}Model"):
            yield name.lower(), vision(name)


ZOOS: dict[str, Callable[[], Iterator[Model]]] = {
    "torchvision": torchvision_models,
    "ultralytics": ultralytics_models,
    "timm": timm_models,
    "diffusers": diffusers_models,
    "transformers": transformers_models,
}


def expire(*_: Any) -> None:
    raise TimeoutError(f"not done after {DEADLINE} s")


def convolutions(build: Callable[[], Any]) -> tuple[Counter[str], str]:
    """The convolutions of a model, and why it stopped early if it did."""
    recorder = Recorder()
    signal.alarm(DEADLINE)
    try:
        try:
            with torch.device("meta"), recorder:
                build()
        except NotImplementedError:
            # Definitions that compute their sizes with tensors are first created in memory.
            recorder.keys.clear()
            with recorder:
                build()
    except Exception as error:  # any model may reject meta tensors, each in its own way
        return recorder.keys, f"{type(error).__name__}: {str(error)[:80]}"
    finally:
        signal.alarm(0)
    return recorder.keys, ""


def of_networks(names: list[str]) -> Iterator[str]:
    """The lines of single networks: how often each computes a convolution."""
    for name in names:
        zoo, _, model = name.partition("/")
        keys, stopped = convolutions(dict(ZOOS[zoo]())[model])
        if stopped:
            sys.exit(f"{name} stopped early: {stopped}")
        yield from (f"{name}\t{count}\t{key}\n" for key, count in sorted(keys.items()))


def of_zoos(zoos: list[str]) -> Iterator[str]:
    """The lines of whole zoos: the first model that has a convolution, and how many do."""
    found: dict[str, tuple[str, int]] = {}
    for zoo in zoos:
        done, failed = 0, []
        try:
            models = list(ZOOS[zoo]())
        except ImportError as error:
            print(f"{zoo}: left out ({error})", file=sys.stderr)
            continue
        for name, build in models:
            keys, stopped = convolutions(build)
            failed += [f"{name} ({stopped})"] if stopped else []
            done += bool(keys)
            for key in keys:
                first, count = found.get(key, (f"{zoo}/{name}", 0))
                found[key] = (first, count + 1)
        print(f"{zoo}: {done} models, {len(failed)} stopped early, {len(found)} problems so far", file=sys.stderr)
        for line in failed[:12]:
            print(f"  {line}", file=sys.stderr)
    yield from (f"{first}\t{count}\t{key}\n" for key, (first, count) in sorted(found.items(), key=lambda item: item[0]))


def main() -> int:
    global BATCH
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", default=",".join(ZOOS))
    parser.add_argument("--networks", help="zoo/model, comma-separated: these by themselves")
    parser.add_argument("--batch", type=int, default=BATCH)
    arguments = parser.parse_args()
    BATCH = arguments.batch
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, expire)
    networks = arguments.networks.split(",") if arguments.networks else []
    lines = list(of_networks(networks) if networks else of_zoos(arguments.only.split(",")))
    temporary = Path(arguments.out + ".new")
    temporary.write_text("".join(lines))
    temporary.replace(arguments.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
