"""Seconds of a guided step at full width on this GPU: ``python tests/gpu/step_speed.py OUT.json [768x448x25 ...]``.

Random bf16 weights of the released shapes, 1,024 text tokens, 24 fps, all four legs in one pass; CUDA events, medians.
Two variants in one process on the same inputs: torch operations and fused kernels. Errors are relative L2 against the
torch operations in float32 on a model of four blocks.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shotclock.geometry import Geometry
from shotclock.guidance import Guidance, Guider, Leg
from shotclock.latents import noise, text_to_video
from shotclock.model import ops
from shotclock.model.attention import attention_backends
from shotclock.model.config import TransformerConfig, transformer_config
from shotclock.model.transformer import Stream, Transformer
from shotclock.render.denoise import prepare
from shotclock.weights.released import PINNED_25_CONFIG

DEVICE = torch.device("cuda")
GEOMETRIES = ("768x448x25", "1024x576x49", "1024x576x121")
GUIDER = {"stg": 1.0, "modality": 3.0, "rescale": 0.7, "stg_blocks": (28,)}


def random_transformer(config: TransformerConfig, dtype: torch.dtype, seed: int = 0) -> Transformer:
    """Weights that keep every state finite and of order one."""
    with torch.device("meta"):
        model = Transformer(config)
    model.to_empty(device=DEVICE)
    generator = torch.Generator(DEVICE).manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "norm.weight" in name:
            parameter.data.normal_(1, 0.1, generator=generator)
        elif "table" in name or "keyframes" in name or parameter.ndim == 1:
            parameter.data.normal_(0, 0.1, generator=generator)
        else:
            parameter.data.normal_(0, parameter.shape[1] ** -0.5, generator=generator)
        if "scale_shift_table" not in name or dtype != torch.bfloat16:
            parameter.data = parameter.data.to(dtype)
    return model.eval().requires_grad_(False)


def inputs(model: Transformer, geometry: Geometry, sigma: float) -> tuple[Stream, Stream]:
    """Both streams of a step."""
    c = model.config
    generator = torch.Generator(DEVICE).manual_seed(1)
    contexts = tuple(
        torch.randn(2, 1024, width, device=DEVICE, generator=generator).to(model.dtype)
        for width in (c.video_context, c.audio_context)
    )
    latents = text_to_video(geometry, *noise(geometry, 10)).to(DEVICE, model.dtype)
    video, audio = prepare(model, latents, contexts)
    return (
        video.stream(latents.video.tokens, sigma, enabled=True),
        audio.stream(latents.audio.tokens, sigma, enabled=True),
    )


def legs(config: TransformerConfig, block: int) -> list[Leg]:
    """The four legs, the perturbed one forking at ``block``."""
    both = {**GUIDER, "stg_blocks": (block,)}
    guidance = Guidance(video=Guider(cfg=3, **both), audio=Guider(cfg=7, **both), legs_per_pass=4)
    return list(guidance.legs(config.blocks).values())


def seconds(call: Callable[[], Any], n: int, warm_ups: int) -> list[float]:
    """Device seconds of each of ``n`` calls."""
    for _ in range(warm_ups):
        call()
    times = []
    for _ in range(n):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return times


def attempt(call: Callable[[], Any]) -> Any:
    """The call's result, or what it raised: one variant that fails must not cost the others on a lent GPU."""
    try:
        return call()
    except Exception as error:
        torch.cuda.synchronize()
        return f"{type(error).__name__}: {error}"[:300]


def summary(times: list[float]) -> dict[str, float]:
    """Median, spread and count."""
    median = statistics.median(times)
    return {"median_s": median, "spread": (max(times) - min(times)) / median, "n": len(times)}


def without_fused(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call with torch operations only."""

    def plain() -> Any:
        fused, ops.FUSED = ops.FUSED, None
        try:
            return call()
        finally:
            ops.FUSED = fused

    return plain


def relative(out: Tensor, reference: Tensor) -> float:
    """Relative L2."""
    return float((out.double() - reference.double()).norm() / reference.double().norm())


def errors() -> dict[str, Any]:
    """Four blocks at full width: every variant against float32, and the graph against the eager pass bit by bit."""
    config = transformer_config(PINNED_25_CONFIG | {"num_layers": 4})
    geometry = Geometry(width=256, height=160, frames=25, fps=Fraction(24))
    exact = random_transformer(config, torch.float32)
    model = random_transformer(config, torch.float32).to(torch.bfloat16)
    rows = legs(config, 2)
    exact_inputs, given = inputs(exact, geometry, 0.7), inputs(model, geometry, 0.7)
    reference = without_fused(lambda: exact(*exact_inputs, rows))()
    fused32 = exact(*exact_inputs, rows)
    plain, fused = without_fused(lambda: model(*given, rows))(), model(*given, rows)
    variants = {"fused_float32": fused32, "torch_bf16": plain, "fused_bf16": fused}
    kept: dict[Any, Any] = {}
    one_by_one = [model(*given, [leg], kept=kept, later=rows[i + 1 :]) for i, leg in enumerate(rows)]
    variants["kept_prefix_bf16"] = tuple(torch.cat([one[s] for one in one_by_one]) for s in (0, 1))
    found: dict[str, Any] = {
        name: [relative(out, ref) for out, ref in zip(outs, reference, strict=True)] for name, outs in variants.items()
    }
    alone = [model(*given, [leg]) for leg in rows]
    found["batched_vs_alone_bf16"] = [relative(fused[s], torch.cat([one[s] for one in alone])) for s in (0, 1)]
    return found


def matrix_rate() -> float:
    """TFLOP/s of an 8,192^3 bf16 product on random data."""
    a, b = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    return 2 * 8192**3 / statistics.median(seconds(lambda: a @ b, 10, 3)) / 1e12


def kernels(call: Callable[[], Any]) -> list[tuple[str, int, float]]:
    """Kernels of one call by device milliseconds: name, count, ms."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    rows = [(e.key[:90], e.count, e.self_device_time_total / 1000) for e in profile.key_averages()]
    return sorted(rows, key=lambda row: -row[2])[:30]


def main() -> None:
    """Measure, print a table, write everything to the file named first."""
    out, names = Path(sys.argv[1]), sys.argv[2:] or GEOMETRIES
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "errors": {}}
    with torch.inference_mode(), attention_backends():
        found["errors"] = attempt(errors)
        print(json.dumps(found["errors"]), flush=True)
        torch.cuda.empty_cache()
        found["matrix_tflops"] = matrix_rate()
        config = transformer_config(PINNED_25_CONFIG)
        model = random_transformer(config, torch.bfloat16)
        weights = torch.cuda.memory_allocated()
        rows = legs(config, 28)
        for name in names:
            width, height, frames = (int(part) for part in name.split("x"))
            geometry = Geometry(width=width, height=height, frames=frames, fps=Fraction(24))
            given = inputs(model, geometry, 0.7)
            torch.cuda.reset_peak_memory_stats()
            eager = lambda: model(*given, rows)  # noqa: E731, B023  (called within this iteration)
            n = 3 if geometry.video_tokens > 20000 else 7
            row: dict[str, Any] = {"tokens": geometry.video_tokens}
            row["torch"] = summary(seconds(without_fused(eager), n, 2))
            row["fused"] = summary(seconds(eager, n, 2))
            row["peak_eager_gib"] = torch.cuda.max_memory_allocated() / 2**30 - weights / 2**30
            row["kernels"] = attempt(lambda: kernels(eager))  # noqa: B023
            found[name] = row
            print(name, {k: v for k, v in row.items() if k != "kernels"}, flush=True)
            out.write_text(json.dumps(found, indent=1))
    for name in names:
        print("==", name)
        for kernel in found[name]["kernels"]:
            print("  ", *kernel)


if __name__ == "__main__":
    main()
