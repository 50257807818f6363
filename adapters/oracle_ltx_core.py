#!/usr/bin/env python3
"""Run the official ltx_core / ltx_pipelines 1.2.0 one-stage text-to-video path on one workload, as a reference.

    python oracle_ltx_core.py JOB.json OUT_DIR

JOB.json has exactly these keys; paths are relative to the working directory:
  transformer, text_encoder, video_vae, audio_vae    official split-format checkpoints; the last three may be null
  prompt, negative_prompt, width, height, frames, fps, steps, seed
  contexts        null, or safetensors video_pos, video_neg, audio_pos, audio_neg, each (1,S,width), used instead of
                  running the text encoder
  noise           null (the official noiser draws it from the seed, on the device and in the dtype of the run), or
                  safetensors with patchified noise video (1,T,128), audio (1,A,128)
  video, audio    guidance: cfg_scale, stg_scale, stg_blocks, modality_scale, rescale_scale, skip_step
  max_batch_size  1..4 guidance legs per forward
  dtype           float32 | bfloat16       device  cpu | cuda
  compile         true: official torch.compile of the blocks; its cost falls into the first forwards
  decode          true: also decode; official automatic tiling on cuda, untiled on cpu

OUT_DIR: latents.safetensors   final video (1,128,F,H,W), audio (1,8,A,16), in the dtype of the run
         contexts.safetensors  the contexts used, keys as above
         per_step.safetensors  latents after each step: video (steps,128,F,H,W), audio (steps,8,A,16)
         timings.json          device-synchronised seconds (load_s: building the transformer; text_s and decode_*_s
                               include loading), peak device bytes per phase, versions; null where a phase did not
                               run. Also printed, compact, as the last line of stdout
         frames.npy            if decode: uint8 (F,H,W,3), round(255 x)
         audio.wav             if decode: 32-bit float, 48 kHz

Exit code 2 with a message on stderr: a package or file is missing, or the job is not as described.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import time
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")


def fail(message):
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)


try:
    import numpy as np
    import torch
    from ltx_core.components.guiders import MultiModalGuiderParams, create_multimodal_guider_factory
    from ltx_core.components.noisers import GaussianNoiser
    from ltx_core.components.schedulers import LTX2Scheduler
    from ltx_core.model.transformer import X0Model
    from ltx_core.model.transformer.compiling import CompilationConfig
    from ltx_core.model.video_vae import AUTO_TILING
    from ltx_core.text_encoders.gemma.encoders import base_encoder
    from ltx_core.types import VideoPixelShape
    from ltx_pipelines.utils import helpers
    from ltx_pipelines.utils.blocks import AudioDecoder, DiffusionStage, PromptEncoder, VideoDecoder
    from ltx_pipelines.utils.denoisers import FactoryGuidedDenoiser
    from ltx_pipelines.utils.model_paths import ModelPaths
    from ltx_pipelines.utils.samplers import euler_denoising_loop
    from ltx_pipelines.utils.types import ModalitySpec
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file
    from scipy.io import wavfile
except ImportError as error:
    fail(f"{error}; this script needs ltx_core and ltx_pipelines 1.2.0 with their dependencies")

STREAMS = ("video", "audio")
CONTEXTS = ("video_pos", "video_neg", "audio_pos", "audio_neg")
GUIDANCE = {"cfg_scale", "stg_scale", "stg_blocks", "modality_scale", "rescale_scale", "skip_step"}
JOB = {
    "transformer",
    "text_encoder",
    "video_vae",
    "audio_vae",
    "prompt",
    "negative_prompt",
    "contexts",
    "noise",
    "width",
    "height",
    "frames",
    "fps",
    "steps",
    "seed",
    "video",
    "audio",
    "max_batch_size",
    "dtype",
    "device",
    "compile",
    "decode",
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PACKAGES = ("ltx-core", "ltx-pipelines", "transformers", "safetensors", "triton", "natten", "flash-attn-3")


def check_keys(name, found, expected):
    if set(found) != expected:
        fail(f"{name}: missing {sorted(expected - set(found))}, unknown {sorted(set(found) - expected)}")


def read_job(path):
    try:
        job = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        fail(f"cannot read job {path}: {error}")
    check_keys("job", job, JOB)
    for stream in STREAMS:
        check_keys(f"job[{stream!r}]", job[stream], GUIDANCE)
    if job["dtype"] not in DTYPES or job["device"] not in ("cpu", "cuda") or job["max_batch_size"] not in range(1, 5):
        fail("dtype is float32 or bfloat16, device is cpu or cuda, max_batch_size is 1 to 4")
    if job["device"] == "cuda" and not torch.cuda.is_available():
        fail("device is cuda, but this torch sees no CUDA device")
    needed = ["transformer", "contexts" if job["contexts"] else "text_encoder"]
    needed += ["noise"] * bool(job["noise"]) + ["video_vae", "audio_vae"] * job["decode"]
    for key in needed:
        if not job[key] or not Path(job[key]).is_file():
            fail(f"{key}: file not found: {job[key]}" if job[key] else f"{key} is null, but this job needs it")
    return job


def load_tensors(path, keys):
    tensors = load_file(path)
    if missing := [key for key in keys if key not in tensors]:
        fail(f"{path}: missing tensors {missing}")
    return {key: tensors[key] for key in keys}


def save_tensors(tensors, path):
    save_file({key: t.cpu().contiguous() for key, t in tensors.items()}, path)


class Meter:
    """Device-synchronised clock; seconds and peak device memory of each phase."""

    def __init__(self, device):
        self.on_cuda = device.type == "cuda"
        self.seconds, self.peaks = {}, {}

    def now(self):
        if self.on_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    @contextmanager
    def phase(self, name):
        start = self.now()
        if self.on_cuda:
            torch.cuda.reset_peak_memory_stats()
        yield
        self.seconds[name] = self.now() - start
        if self.on_cuda:
            self.peaks[name] = torch.cuda.max_memory_allocated()


class GivenNoise(GaussianNoiser):
    """The official noiser with given tensors; DiffusionStage noises video first, then audio."""

    def __init__(self, tensors):
        self.queue = [tensors[stream] for stream in STREAMS]

    def _sample_noise(self, state):
        noise = self.queue.pop(0)
        if noise.shape != state.latent.shape:
            raise ValueError(f"noise is {tuple(noise.shape)}, the workload needs {tuple(state.latent.shape)}")
        return noise.to(state.latent)


class Recorder:
    """Runs the official Euler loop for DiffusionStage, times its steps and forwards, keeps the latents of each step."""

    def __init__(self, meter, legs):
        self.meter, self.legs = meter, legs
        self.steps, self.forwards, self.latents = [], [], []
        self.created = meter.now()

    def loop(self, transformer, denoiser, **states):
        model = next(m for m in transformer.modules() if isinstance(m, X0Model))
        hooks = [
            model.register_forward_pre_hook(self.before_forward, with_kwargs=True),
            model.register_forward_hook(self.after_forward, with_kwargs=True),
        ]

        def watched_denoiser(transformer, video, audio, sigmas, index):
            if index > 0:
                self.end_step(video, audio)
            self.pending = list(self.legs)
            return denoiser(transformer, video, audio, sigmas, index)

        self.step_start = self.meter.now()
        self.load_s = self.step_start - self.created
        video, audio = euler_denoising_loop(transformer=transformer, denoiser=watched_denoiser, **states)
        self.end_step(video, audio)
        for hook in hooks:
            hook.remove()
        return video, audio

    def end_step(self, video, audio):
        now = self.meter.now()
        self.steps.append(now - self.step_start)
        self.step_start = now
        self.latents.append((video.latent, audio.latent))

    def before_forward(self, model, args, kwargs):
        self.forward_start = self.meter.now()

    def after_forward(self, model, args, kwargs, output):
        seconds = self.meter.now() - self.forward_start
        batch = kwargs["video"].latent.shape[0]
        legs, self.pending = self.pending[:batch], self.pending[batch:]
        self.forwards.append({"step": len(self.steps), "legs": legs, "batch": batch, "seconds": seconds})


def guidance_legs(guiders):
    """Names of the passes of a guided step, in the order in which the official denoiser batches them."""
    wanted = {
        "uncond": [g.do_unconditional_generation() for g in guiders],
        "perturbed": [g.do_perturbed_generation() for g in guiders],
        "isolated": [g.do_isolated_modality_generation() for g in guiders],
    }
    return ["cond"] + [leg for leg, by_stream in wanted.items() if any(by_stream)]


@contextmanager
def transformer_file(job, out_dir):
    """DiffusionStage keeps the dtype of the file, so float32 needs an up-cast copy of the same values."""
    if job["dtype"] == "bfloat16":
        yield job["transformer"]
        return
    tmp = out_dir / "tmp"
    tmp.mkdir(exist_ok=True)
    try:
        with safe_open(job["transformer"], framework="pt") as source:
            tensors = {key: source.get_tensor(key).float() for key in source.keys()}
            save_file(tensors, tmp / "transformer.safetensors", metadata=source.metadata())
        del tensors
        yield str(tmp / "transformer.safetensors")
    finally:
        shutil.rmtree(tmp)


def get_contexts(job, device, dtype, meter):
    if job["contexts"]:
        return {key: t.to(device, dtype) for key, t in load_tensors(job["contexts"], CONTEXTS).items()}
    base_encoder.build_gemma_processor = lambda *_: None  # only for images, and it would need torchvision
    paths = ModelPaths.from_split(transformer_path=job["transformer"], text_encoder_path=job["text_encoder"])
    with meter.phase("text"):
        pos, neg = PromptEncoder(paths, dtype, device)([job["prompt"], job["negative_prompt"]])
    return dict(zip(CONTEXTS, (pos.video_encoding, neg.video_encoding, pos.audio_encoding, neg.audio_encoding)))


def denoise(job, contexts, device, dtype, generator, meter, out_dir):
    guides = [
        create_multimodal_guider_factory(MultiModalGuiderParams(**job[stream]), contexts[f"{stream}_neg"])
        for stream in STREAMS
    ]
    legs = guidance_legs([guide.build_from_sigma(1.0) for guide in guides])
    noiser = GivenNoise(load_tensors(job["noise"], STREAMS)) if job["noise"] else GaussianNoiser(generator)
    with transformer_file(job, out_dir) as path, meter.phase("denoise"):
        recorder = Recorder(meter, legs)
        compilation = CompilationConfig() if job["compile"] else None
        states = DiffusionStage.from_checkpoint(path, dtype, device, compilation_config=compilation)(
            denoiser=FactoryGuidedDenoiser(contexts["video_pos"], contexts["audio_pos"], *guides),
            sigmas=LTX2Scheduler().execute(steps=job["steps"]).to(device, torch.float32),
            noiser=noiser,
            width=job["width"],
            height=job["height"],
            frames=job["frames"],
            fps=job["fps"],
            video=ModalitySpec(context=contexts["video_pos"]),
            audio=ModalitySpec(context=contexts["audio_pos"]),
            loop=recorder.loop,
            max_batch_size=job["max_batch_size"],
        )
    return {stream: state.latent for stream, state in zip(STREAMS, states)}, recorder


def unpatchify(steps, final):
    video, audio = (torch.cat(tokens) for tokens in zip(*steps))
    return {
        "video": video.transpose(1, 2).unflatten(2, final["video"].shape[2:]),
        "audio": audio.unflatten(2, (final["audio"].shape[1], -1)).transpose(1, 2),
    }


def decode(job, latents, device, dtype, generator, meter, out_dir):
    vae, tiling = job["video_vae"], None
    with meter.phase("decode_video"):
        if meter.on_cuda:  # the official tiling of the diffusion decoder follows from free CUDA memory
            shape = VideoPixelShape(1, job["frames"], job["height"], job["width"], job["fps"])
            tiling = helpers.ensure_tiling_config(
                AUTO_TILING,
                video_shape=shape,
                vae_checkpoint_path=vae,
                device=device,
                scale_factors=helpers.tiling_scale_factors_for_vae(vae),
            )
        chunks = VideoDecoder(vae, dtype, device)(latents["video"], tiling, generator)
        frames = torch.cat([chunk.float().clamp(0, 1).mul(255).round().byte().cpu() for chunk in chunks])
    with meter.phase("decode_audio"):
        audio_dtype = dtype if meter.on_cuda else torch.float32  # on a CPU the vocoder cannot run from bfloat16 weights
        audio = AudioDecoder(job["audio_vae"], audio_dtype, device)(latents["audio"].to(audio_dtype))
    np.save(out_dir / "frames.npy", frames.numpy())
    wavfile.write(out_dir / "audio.wav", audio.sampling_rate, audio.waveform.T.float().cpu().numpy())
    return tiling and str(tiling)


def environment(meter):
    installed = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in metadata.distributions()}
    return {
        "device": torch.cuda.get_device_name() if meter.on_cuda else f"cpu, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "packages": {name: installed[name] for name in PACKAGES if name in installed},
    }


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=Path, metavar="JOB.json")
    parser.add_argument("out_dir", type=Path, metavar="OUT_DIR")
    args = parser.parse_args()
    job, out_dir = read_job(args.job), args.out_dir
    out_dir.mkdir(parents=True, exist_ok=True)
    helpers.assert_resolution(height=job["height"], width=job["width"], is_two_stage=False)
    device, dtype = torch.device(job["device"]), DTYPES[job["dtype"]]
    torch.backends.cudnn.allow_tf32 = job["dtype"] != "float32"
    meter, generator = Meter(device), torch.Generator(device).manual_seed(job["seed"])

    contexts = get_contexts(job, device, dtype, meter)
    save_tensors(contexts, out_dir / "contexts.safetensors")
    latents, recorder = denoise(job, contexts, device, dtype, generator, meter, out_dir)
    save_tensors(latents, out_dir / "latents.safetensors")
    save_tensors(unpatchify(recorder.latents, latents), out_dir / "per_step.safetensors")
    tiling = decode(job, latents, device, dtype, generator, meter, out_dir) if job["decode"] else None

    spent = meter.seconds.get
    timings = {
        "load_s": recorder.load_s,
        "text_s": spent("text"),
        "steps_s": recorder.steps,
        "forwards": recorder.forwards,
        "decode_video_s": spent("decode_video"),
        "decode_audio_s": spent("decode_audio"),
        "peak_device_bytes": meter.peaks or None,
        "tiling": tiling,
        "dtype": job["dtype"],
        "compile": job["compile"],
        **environment(meter),
    }
    (out_dir / "timings.json").write_text(json.dumps(timings, indent=1) + "\n")
    print(json.dumps(timings, separators=(",", ":")))


if __name__ == "__main__":
    main()
