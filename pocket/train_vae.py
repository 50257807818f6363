"""Trains the pocket video VAE: L1 + squared error on procedural clips, latents noised and held to unit statistics.

Run as `python -m pocket.train_vae --out DIR --seconds N`. Writes the official-format file, the weights to resume from,
a JSON-lines log and a picture of held-out reconstructions. Must not know sound or words.
"""

import argparse
import json
from pathlib import Path

import torch
from diffusers import AutoencoderKLLTX2Video
from jaxtyping import Float
from torch import Tensor

from pocket.data import render_video
from pocket.export import VIDEO_FILE, write_video_vae
from pocket.layout import build_video_vae
from pocket.loop import Average, Log, Optimisers, Schedule, load_state, round_to_bfloat16, save_state
from pocket.scenes import sample_scenes

MATRIX_LR, VECTOR_LR, CLIP = 3e-3, 2e-3, 1.0
AVERAGE_DECAY = 0.995
NEAR_WEIGHT, SQUARED_WEIGHT, STATISTICS_WEIGHT = 4.0, 4.0, 0.02
LATENT_NOISE = 0.3  # largest standard deviation of noise on unit latents: robust to what a sampler gets wrong
HELD_OUT_SEED = 1_000_003
STATE = "vae_state"


def arguments() -> argparse.Namespace:
    """Command line."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--resume", type=Path, help="folder with vae_state.*.safetensors")
    p.add_argument("--seconds", type=float, default=480.0)
    p.add_argument("--max-steps", type=int, default=10**9)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--held-out", type=int, default=64)
    p.add_argument("--reserve", type=float, default=25.0, help="seconds kept for evaluation and writing")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--compile", action="store_true")
    return p.parse_args()


def loss_of(
    decoded: Float[Tensor, "b 3 f h w"], clip: Float[Tensor, "b 3 f h w"], near: Float[Tensor, "b 1 f h w"]
) -> Float[Tensor, ""]:
    """L1 and squared error, heavier on shapes and their outlines."""
    error = (decoded.float() - clip).abs()
    return ((1 + NEAR_WEIGHT * near) * (error + SQUARED_WEIGHT * error * error)).mean()


def statistics_loss(latents: Float[Tensor, "b 128 t y x"]) -> Float[Tensor, ""]:
    """Distance of every channel's mean and standard deviation over the batch from 0 and 1."""
    std, mean = torch.std_mean(latents.float(), dim=(0, 2, 3, 4))
    return (mean**2).mean() + ((std - 1) ** 2).mean()


@torch.no_grad()
def measure(vae: AutoencoderKLLTX2Video, count: int, device: str, batch: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """PSNR in dB of each held-out clip, the latents, and some clips beside their reconstructions for the eye."""
    generator = torch.Generator(device).manual_seed(HELD_OUT_SEED)
    psnr, latents, strip = [], [], []
    for _ in range(0, count, batch):
        clip, _ = render_video(sample_scenes(batch, generator))
        latent = vae.encode(clip).latent_dist.mode()
        decoded = vae.decode(latent).sample.clamp(-1, 1)
        psnr.append(-10 * (((decoded - clip) / 2) ** 2).mean(dim=(1, 2, 3, 4)).log10())
        latents.append(latent)
        strip.append(torch.stack([clip, decoded], 1)[:2, :, :, ::6].cpu())
    return torch.cat(psnr), torch.cat(latents), torch.cat(strip)


def save_strip(path: Path, strip: Float[Tensor, "k 2 3 f h w"]) -> None:
    """One row a clip and its reconstruction, five frames wide."""
    from PIL import Image

    rows, sides, channels, frames, height, width = strip.shape
    picture = strip.permute(0, 1, 4, 3, 5, 2).reshape(rows * sides * height, frames * width, channels)
    Image.fromarray(((picture + 1) * 127.5).byte().numpy()).resize(
        (frames * width // 2, rows * sides * height // 2)
    ).save(path)


def set_statistics(vae: AutoencoderKLLTX2Video, latents: Float[Tensor, "n 128 t y x"]) -> None:
    """Per-channel mean and standard deviation that shipped latents are normalised with."""
    std, mean = torch.std_mean(latents, dim=(0, 2, 3, 4))
    vae.latents_mean.copy_(mean)
    vae.latents_std.copy_(std)


def train(args: argparse.Namespace) -> None:
    """The whole run."""
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    schedule = Schedule(seconds=args.seconds - args.reserve, max_steps=args.max_steps)
    vae = build_video_vae()
    if args.resume:
        vae.load_state_dict(load_state(args.resume, STATE))
    vae = vae.to(args.device, memory_format=torch.channels_last_3d)
    optimisers = Optimisers(
        vae,
        matrix_lr=MATRIX_LR,
        vector_lr=VECTOR_LR,
        to_adam=lambda n: n in ("encoder.conv_in.conv.weight", "decoder.conv_out.conv.weight"),
    )
    average = Average(vae, AVERAGE_DECAY)
    generator = torch.Generator(args.device).manual_seed(args.seed + 17)
    log = Log(args.out / "train_vae.jsonl")
    encode, decode = vae.encoder, vae.decoder
    if args.compile:
        torch._dynamo.config.suppress_errors = True  # an uncompiled run beats a lost lease; the log shows the speed
        encode, decode = torch.compile(vae.encoder), torch.compile(vae.decoder)
    sums = torch.zeros(3, device=args.device)
    while not schedule.done:
        with torch.no_grad():
            clip, near = render_video(sample_scenes(args.batch, generator))
        with torch.autocast(args.device, torch.bfloat16, enabled=args.device == "cuda"):
            latent = encode(clip)[:, :128]
            level = LATENT_NOISE * torch.rand(len(latent), 1, 1, 1, 1, device=args.device)
            decoded = decode(latent + level * torch.randn_like(latent))
        picture, shape = loss_of(decoded, clip, near), statistics_loss(latent)
        (picture + STATISTICS_WEIGHT * shape).backward()
        optimisers.step(schedule.rate(), CLIP)
        average.update()
        sums += torch.stack([picture.detach(), shape.detach(), ((decoded.detach().float() - clip) / 2).square().mean()])
        schedule.advance()
        if schedule.step % 50 == 0 or schedule.step <= 2 or schedule.done:
            mean = (sums / (50 if schedule.step % 50 == 0 else 1)).tolist()
            sums.zero_()
            log.write(
                step=schedule.step,
                s=schedule.elapsed_s,
                share=schedule.share,
                loss=mean[0],
                stats=mean[1],
                noisy_mse=mean[2],
            )
    finish(args, vae, average, log, schedule)


def finish(
    args: argparse.Namespace, vae: AutoencoderKLLTX2Video, average: Average, log: Log, schedule: Schedule
) -> None:
    """Write the state to resume from, then the averaged weights as the official file, then what they reach."""
    save_state(args.out, STATE, vae.state_dict())
    average.swap()
    _, latents, _ = measure(vae, args.held_out, args.device)
    set_statistics(vae, latents)
    round_to_bfloat16(vae)
    write_video_vae(args.out / VIDEO_FILE, vae)
    psnr, latents, strip = measure(vae, args.held_out, args.device)
    save_strip(args.out / "vae_strip.png", strip[:6])
    half = 1.96 * psnr.std().item() / len(psnr) ** 0.5
    result = {"n": len(psnr), "psnr_db": psnr.mean().item(), "ci95_db": half, "psnr_min_db": psnr.min().item()}
    log.write(
        event="held out", step=schedule.step, s=schedule.elapsed_s, latent_max=latents.abs().max().item(), **result
    )
    (args.out / "vae_result.json").write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    train(options)
