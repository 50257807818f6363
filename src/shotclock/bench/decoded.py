"""What our decoders make of another implementation's latents, beside what it made of them itself.

The same latents on both sides, so that nothing of the trajectory is in the figures. Knows no adapter: where one left no
``frames.npy`` or ``audio.wav``, its stage was not run, and that is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from scipy.io import wavfile

from shotclock.bench.job import Workload
from shotclock.bench.ours import DTYPES
from shotclock.geometry import patchify_audio
from shotclock.record.gates import VOCODER_COSINE, VOCODER_L2, Gate, decode_gate, tensor_gate
from shotclock.record.pictures_compared import compare_pictures
from shotclock.render.decoders import load_decoders
from shotclock.render.diffusion_decode import DiffusionVideoDecoder
from shotclock.render.finish import noise_stream, sound
from shotclock.render.reopen import headers_of

DECODE, VOCODER = "decode of their latents", "vocoder of their latents"


def decode_gates(work: Workload, out: Path, device: torch.device) -> Iterator[Gate]:
    """Pictures and sound of ``out / "latents.safetensors"``, ours against ``frames.npy`` and ``audio.wav`` there."""
    frames, wave = out / "frames.npy", out / "audio.wav"
    if not (frames.is_file() or wave.is_file()):
        yield from (Gate(stage=stage, outcome="not run", said="theirs did not decode") for stage in (DECODE, VOCODER))
        return
    geometry = work.request.geometry
    latents = {name: tensor.to(device) for name, tensor in load_file(out / "latents.safetensors").items()}
    with torch.inference_mode():
        headers = headers_of(work.run, work.request, work.plan, None)
        decoders = load_decoders(headers, device, DTYPES[work.plan.dtype])
        if isinstance(decoders.video, DiffusionVideoDecoder):
            yield Gate(stage=DECODE, outcome="not run", said="this decoder draws noise, which theirs draws differently")
        elif frames.is_file():
            generator = noise_stream(work.request, work.request.stages[-1])
            pictures = decoders.pictures(latents["video"].to(DTYPES[work.plan.dtype]), generator)
            ours = torch.cat(list(pictures.frames(pictures.planned(geometry)))).numpy()
            yield _pictures(ours, np.load(frames, allow_pickle=False))
        if wave.is_file():
            rate, theirs = wavfile.read(wave)
            made = sound(decoders.audio, patchify_audio(latents["audio"]), geometry).numpy()
            yield _sound(made, decoders.audio.sample_rate, np.atleast_2d(theirs.T).astype(np.float32), int(rate))


def _pictures(ours: np.ndarray, theirs: np.ndarray) -> Gate:
    if ours.shape != theirs.shape:
        return Gate(stage=DECODE, outcome="FAIL", said=f"shapes {ours.shape} and {theirs.shape}")
    gate = decode_gate(compare_pictures(ours, theirs))
    return Gate(stage=DECODE, outcome=gate.outcome, said=gate.said)


def _sound(ours: np.ndarray, our_rate: int, theirs: np.ndarray, rate: int) -> Gate:
    """Over the samples that both have: either may be padded or cut to the length of the pictures."""
    if (our_rate, ours.shape[0]) != (rate, theirs.shape[0]):
        said = f"{ours.shape[0]} channels at {our_rate} Hz and {theirs.shape[0]} at {rate}"
        return Gate(stage=VOCODER, outcome="FAIL", said=said)
    both = min(ours.shape[1], theirs.shape[1])
    return tensor_gate(VOCODER, ours[:, :both], theirs[:, :both], l2=VOCODER_L2, least_cosine=VOCODER_COSINE)
