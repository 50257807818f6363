#!/usr/bin/env python3
"""Run the transformer of diffusers 0.42 with its own guided loop on one workload, as a second reference.

    python oracle_diffusers.py JOB.json OUT_DIR

JOB.json is that of oracle_ltx_core.py. The model class, the positions and the rotary tables are the library's; loop,
schedule and guidance are written here, in a few lines, from the published equations, and import nothing of shotclock.
What the library cannot do is refused: no text encoder here (contexts and noise must be given), no decode, no compile,
skip_step 0, and the same STG blocks for both streams (the library always perturbs both). One leg a forward.

OUT_DIR: latents.safetensors   final video (1,128,F,H,W), audio (1,8,A,16), in the dtype of the run
         per_step.safetensors  latents after each step: video (steps,128,F,H,W), audio (steps,8,A,16)
         forward.safetensors   velocities of the first forward of each leg: "LEG video" (1,T,128), "LEG audio" (1,A,128)
         timings.json          device-synchronised seconds, versions; also the last line of stdout

Exit code 2 with a message on stderr: a package or file is missing, or the job is not one that this can run.
"""

import argparse
import json
import math
import os
import platform
import re
import sys
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def fail(message):
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)


try:
    import diffusers
    import torch
    from diffusers.models.transformers.transformer_ltx2 import LTX2VideoTransformer3DModel
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file
except ImportError as error:
    fail(f"{error}; this script needs diffusers 0.42 and torch")

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
PREFIX = "model.diffusion_model."
CONNECTORS = ("video_embeddings_connector.", "audio_embeddings_connector.")
RENAMED = (  # official names to the library's
    (r"^patchify_proj", "proj_in"),
    (r"^audio_patchify_proj", "audio_proj_in"),
    (r"^av_ca_video_scale_shift_adaln_single", "av_cross_attn_video_scale_shift"),
    (r"^av_ca_audio_scale_shift_adaln_single", "av_cross_attn_audio_scale_shift"),
    (r"^av_ca_a2v_gate_adaln_single", "av_cross_attn_video_a2v_gate"),
    (r"^av_ca_v2a_gate_adaln_single", "av_cross_attn_audio_v2a_gate"),
    (r"^adaln_single", "time_embed"),
    (r"^audio_adaln_single", "audio_time_embed"),
    (r"^prompt_adaln_single", "prompt_adaln"),
    (r"^audio_prompt_adaln_single", "audio_prompt_adaln"),
    (r"scale_shift_table_a2v_ca_video", "video_a2v_cross_attn_scale_shift_table"),
    (r"scale_shift_table_a2v_ca_audio", "audio_a2v_cross_attn_scale_shift_table"),
    (r"\.q_norm\.", ".norm_q."),
    (r"\.k_norm\.", ".norm_k."),
)


def read_job(path):
    try:
        job = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        fail(f"cannot read job {path}: {error}")
    for name, found, expected in (("job", job, JOB), *((s, job.get(s, {}), GUIDANCE) for s in STREAMS)):
        if set(found) != expected:
            fail(f"{name}: missing {sorted(expected - set(found))}, unknown {sorted(set(found) - expected)}")
    for key in ("transformer", "contexts", "noise"):
        if not job[key] or not Path(job[key]).is_file():
            fail(f"{key}: file not found: {job[key]}" if job[key] else f"{key} is null, but this job needs it")
    if job["decode"] or job["compile"]:
        fail("decode and compile are not done here")
    if any(job[stream]["skip_step"] for stream in STREAMS):
        fail("skip_step is not done here")
    blocks = {tuple(job[stream]["stg_blocks"]) for stream in STREAMS if job[stream]["stg_scale"]}
    if len({bool(job[stream]["stg_scale"]) for stream in STREAMS}) > 1 or len(blocks) > 1:
        fail("the library perturbs both streams alike: one stg_scale is 0, or the stg_blocks differ")
    if job["dtype"] not in DTYPES or (job["device"] == "cuda" and not torch.cuda.is_available()):
        fail(f"dtype {job['dtype']}, device {job['device']}: not there")
    return job


def load_model(path, device, dtype):
    """The library's class with the file's weights, loaded strictly."""
    with safe_open(path, framework="pt") as file:
        config = json.loads(file.metadata()["config"])["transformer"]
        state = {}
        for key in file.keys():
            name = key.removeprefix(PREFIX)
            if not name.startswith(CONNECTORS):
                for pattern, replacement in RENAMED:
                    name = re.sub(pattern, replacement, name)
                state[name] = file.get_tensor(key)
    with torch.device("meta"):
        model = LTX2VideoTransformer3DModel(
            in_channels=config["in_channels"],
            out_channels=config["out_channels"],
            num_attention_heads=config["num_attention_heads"],
            attention_head_dim=config["attention_head_dim"],
            cross_attention_dim=config["cross_attention_dim"],
            audio_in_channels=config.get("audio_in_channels", config["audio_out_channels"]),
            audio_out_channels=config["audio_out_channels"],
            audio_num_attention_heads=config["audio_num_attention_heads"],
            audio_attention_head_dim=config["audio_attention_head_dim"],
            audio_cross_attention_dim=config["audio_cross_attention_dim"],
            num_layers=config["num_layers"],
            norm_eps=config["norm_eps"],
            gated_attn=True,
            audio_gated_attn=True,
            cross_attn_mod=True,
            audio_cross_attn_mod=True,
            rope_type="split",
            rope_double_precision=True,
            use_prompt_embeddings=False,
            perturbed_attn=True,
            ff_bias=config["ff_bias"],
            audio_ff_bias=config.get("audio_ff_bias", True),
            use_keyframes_abs_pos_embedding=config["use_keyframes_abs_pos_embedding"],
        )
    state = {name: tensor.to(device, dtype) for name, tensor in state.items()}
    model.load_state_dict(state, strict=True, assign=True)
    return model.eval()


def sigmas(steps):
    """Shifted for 4,096 tokens, stretched to end at 0.1 before 0."""
    mu = 2.05
    u = torch.linspace(1, 0, steps + 1)[:-1]
    shifted = math.exp(mu) / (math.exp(mu) + (1 / u - 1))
    stretched = 1 - (1 - shifted) * (1 - 0.1) / (1 - shifted[-1])
    return torch.cat([stretched, torch.zeros(1)])


def legs_of(job):
    """Names of the forwards of a step: cond, then what either stream's guidance needs."""
    wanted = {
        "uncond": any(job[s]["cfg_scale"] != 1 for s in STREAMS),
        "perturbed": any(job[s]["stg_scale"] for s in STREAMS),
        "isolated": any(job[s]["modality_scale"] != 1 for s in STREAMS),
    }
    return ["cond", *(name for name, needed in wanted.items() if needed)]


def guided(x0, guidance):
    """g = c + (cfg-1)(c-u) + stg(c-p) + (mod-1)(c-m), rescaled; float32."""
    c = x0["cond"].float()
    g = c.clone()
    for name, weight in (
        ("uncond", guidance["cfg_scale"] - 1),
        ("perturbed", guidance["stg_scale"]),
        ("isolated", guidance["modality_scale"] - 1),
    ):
        if name in x0 and weight:
            g += weight * (c - x0[name].float())
    r = guidance["rescale_scale"]
    return g * (r * c.std() / g.std() + 1 - r) if r else g


class Workload:
    """The model with everything that does not change between forwards."""

    def __init__(self, job, device, dtype):
        self.model = load_model(job["transformer"], device, dtype)
        self.contexts = {key: t.to(device, dtype) for key, t in load_file(job["contexts"]).items()}
        if missing := [key for key in CONTEXTS if key not in self.contexts]:
            fail(f"{job['contexts']}: missing tensors {missing}")
        self.frames, self.rows, self.columns = (job["frames"] - 1) // 8 + 1, job["height"] // 32, job["width"] // 32
        noise = load_file(job["noise"])
        self.x = {stream: noise[stream].to(device, dtype) for stream in STREAMS}
        tokens, self.sounds = self.x["video"].shape[1], self.x["audio"].shape[1]
        if tokens != self.frames * self.rows * self.columns:
            fail(f"noise holds {tokens} video tokens, the clip has {self.frames * self.rows * self.columns}")
        self.video_coords = self.model.rope.prepare_video_coords(
            1, self.frames, self.rows, self.columns, device, fps=job["fps"]
        )
        self.audio_coords = self.model.audio_rope.prepare_audio_coords(1, self.sounds, device)
        self.marker = torch.zeros(1, tokens, 1, device=device)
        self.marker[:, : self.rows * self.columns] = 1
        blocks = [job[s]["stg_blocks"] for s in STREAMS if job[s]["stg_scale"]]
        self.stg_blocks = list(blocks[0]) if blocks else None

    def forward(self, leg, sigma):
        side = "neg" if leg == "uncond" else "pos"
        perturbed = leg == "perturbed"
        video, audio = self.x["video"], self.x["audio"]
        time_ = torch.tensor([sigma * 1000], device=video.device, dtype=torch.float32)
        return self.model(
            hidden_states=video,
            audio_hidden_states=audio,
            encoder_hidden_states=self.contexts[f"video_{side}"],
            audio_encoder_hidden_states=self.contexts[f"audio_{side}"],
            timestep=time_[:, None].expand(1, video.shape[1]),
            audio_timestep=time_[:, None].expand(1, audio.shape[1]),
            sigma=time_,
            audio_sigma=time_,
            video_coords=self.video_coords,
            audio_coords=self.audio_coords,
            isolate_modalities=leg == "isolated",
            spatio_temporal_guidance_blocks=self.stg_blocks if perturbed else None,
            perturbation_mask=torch.zeros(1, device=video.device) if perturbed else None,
            video_keyframes_mask=self.marker,
            return_dict=False,
        )

    def unpatchified(self):
        grid = (self.frames, self.rows, self.columns)
        return {
            "video": self.x["video"].transpose(1, 2).unflatten(2, grid),
            "audio": self.x["audio"].unflatten(2, (8, 16)).transpose(1, 2),
        }


def run(job, workload, now):
    legs, levels = legs_of(job), [float(sigma) for sigma in sigmas(job["steps"])]
    steps_s, forwards, kept, first = [], [], {stream: [] for stream in STREAMS}, {}
    for step in range(job["steps"]):
        began = now()
        x0 = {stream: {} for stream in STREAMS}
        for leg in legs:
            start = now()
            velocities = workload.forward(leg, levels[step])
            forwards.append({"step": step, "legs": [leg], "batch": 1, "seconds": now() - start})
            for stream, velocity in zip(STREAMS, velocities):
                x = workload.x[stream]
                x0[stream][leg] = (x.float() - levels[step] * velocity.float()).to(x.dtype)
                if step == 0:
                    first[f"{leg} {stream}"] = velocity
        for stream in STREAMS:
            x = workload.x[stream].float()
            clean = guided(x0[stream], job[stream]).to(workload.x[stream].dtype).float()
            slope = (x - clean) / levels[step]
            workload.x[stream] = (x + slope * (levels[step + 1] - levels[step])).to(workload.x[stream].dtype)
        for stream, latent in workload.unpatchified().items():
            kept[stream].append(latent)
        steps_s.append(now() - began)
    return steps_s, forwards, kept, first


def save(tensors, path):
    save_file({key: t.cpu().contiguous() for key, t in tensors.items()}, path)


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=Path, metavar="JOB.json")
    parser.add_argument("out_dir", type=Path, metavar="OUT_DIR")
    args = parser.parse_args()
    job, out_dir = read_job(args.job), args.out_dir
    out_dir.mkdir(parents=True, exist_ok=True)
    device, dtype = torch.device(job["device"]), DTYPES[job["dtype"]]

    def now():
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    began = now()
    workload = Workload(job, device, dtype)
    load_s = now() - began
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    steps_s, forwards, kept, first = run(job, workload, now)
    save(workload.unpatchified(), out_dir / "latents.safetensors")
    save({stream: torch.cat(latents) for stream, latents in kept.items()}, out_dir / "per_step.safetensors")
    save(first, out_dir / "forward.safetensors")
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else None
    timings = {
        "load_s": load_s,
        "text_s": None,
        "steps_s": steps_s,
        "forwards": forwards,
        "decode_video_s": None,
        "decode_audio_s": None,
        "peak_device_bytes": peak,
        "tiling": None,
        "dtype": job["dtype"],
        "compile": False,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "packages": {"diffusers": diffusers.__version__},
    }
    (out_dir / "timings.json").write_text(json.dumps(timings, indent=1) + "\n")
    print(json.dumps(timings, separators=(",", ":")))


if __name__ == "__main__":
    main()
