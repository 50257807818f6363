"""Trains the pocket audio VAE on log-mels, then the vocoder with bandwidth extension on true and decoded log-mels.

Run as `python -m pocket.train_audio --out DIR --seconds N`. No adversary: tones and clicks repeat with the hop
(sound.py), so spectra and the wave itself are enough. Must not know pixels or words.
"""

import argparse
import json
import wave
from pathlib import Path

import torch
from diffusers import AutoencoderKLLTX2Audio
from diffusers.pipelines.ltx2.vocoder import LTX2VocoderWithBWE
from jaxtyping import Float
from torch import Tensor, nn

from pocket.export import AUDIO_FILE, write_audio_vae
from pocket.layout import build_audio_vae, build_vocoder
from pocket.loop import Average, Log, Optimisers, Schedule, load_state, round_to_bfloat16, save_state
from pocket.scenes import sample_scenes
from pocket.sound import MEL_RATE_HZ, OUTPUT_RATE_HZ, TONE_HZ, log_mel, render_sound

VAE_SHARE = 0.3
VAE_MATRIX_LR, VAE_VECTOR_LR, VOCODER_LR, CLIP = 2e-3, 2e-3, 1e-3, 1.0
AVERAGE_DECAY = 0.995
LATENT_NOISE, STATISTICS_WEIGHT = 0.3, 0.02
WAVE_WEIGHT, MEL_WEIGHT = 20.0, 0.3
WINDOWS = (256, 512, 1024, 2048)
SPECTRUM_FLOOR = 1e-3
MEL_CENTRE, MEL_SCALE = (
    -8.0,
    4.0,
)  # rough centre and spread of log-mels, put into the first and last layers at the start
HELD_OUT_SEED = 1_000_003
VAE_STATE, VOCODER_STATE = "audio_vae_state", "vocoder_state"


def arguments() -> argparse.Namespace:
    """Command line."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--resume", type=Path, help="folder with audio_vae_state.* and vocoder_state.*")
    p.add_argument("--seconds", type=float, default=240.0)
    p.add_argument("--max-steps", type=int, default=10**9, help="of each of the two stages")
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--vocoder-batch", type=int, default=16)
    p.add_argument("--held-out", type=int, default=128)
    p.add_argument("--reserve", type=float, default=15.0, help="seconds kept for evaluation and writing")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return p.parse_args()


@torch.no_grad()
def centre_on_log_mels(first: nn.Conv1d | nn.Conv2d) -> None:
    """Make a fresh first layer see (mel - centre) / scale."""
    first.weight.div_(MEL_SCALE)
    assert first.bias is not None
    first.bias.sub_(MEL_CENTRE * first.weight.flatten(1).sum(1))


def spectra(x: Float[Tensor, "b n"], window: int) -> Float[Tensor, "b k t"]:
    """Magnitudes of a Hann-windowed STFT with a hop of a quarter window."""
    return torch.stft(
        x, window, window // 4, window=torch.hann_window(window, device=x.device), return_complex=True
    ).abs()


def wave_loss(made: Float[Tensor, "b 2 n"], true: Float[Tensor, "b 2 n"]) -> Float[Tensor, ""]:
    """L1 of the wave and of magnitudes and log magnitudes at several resolutions."""
    total = WAVE_WEIGHT * (made - true).abs().mean()
    for window in WINDOWS:
        a, b = (spectra(x.flatten(0, 1), window) for x in (made, true))
        scaled = (a - b).abs().mean() / b.mean().clamp(min=1e-4)
        total = total + scaled + ((a + SPECTRUM_FLOOR).log() - (b + SPECTRUM_FLOOR).log()).abs().mean()
    return total


def latent_statistics(latents: Float[Tensor, "b 8 t 16"]) -> tuple[Float[Tensor, "128"], Float[Tensor, "128"]]:
    """Mean and standard deviation of each patchified feature (channel-major)."""
    std, mean = torch.std_mean(latents.float(), dim=(0, 2))
    return mean.flatten(), std.flatten()


def train_vae(args: argparse.Namespace, vae: AutoencoderKLLTX2Audio, generator: torch.Generator, log: Log) -> None:
    """First stage: log-mels through noised latents; leaves averaged weights and statistics in `vae`."""
    schedule = Schedule(seconds=(args.seconds - args.reserve) * VAE_SHARE, max_steps=args.max_steps)
    edges = ("encoder.conv_in.conv.weight", "decoder.conv_out.conv.weight")
    optimisers = Optimisers(vae, matrix_lr=VAE_MATRIX_LR, vector_lr=VAE_VECTOR_LR, to_adam=lambda n: n in edges)
    average = Average(vae, AVERAGE_DECAY)
    while not schedule.done:
        with torch.no_grad():
            mel = log_mel(render_sound(sample_scenes(args.batch, generator), MEL_RATE_HZ))
        with torch.autocast(args.device, torch.bfloat16, enabled=args.device == "cuda"):
            latent = vae.encoder(mel)[:, :8]
            level = LATENT_NOISE * torch.rand(len(latent), 1, 1, 1, device=args.device)
            decoded = vae.decoder(latent + level * torch.randn_like(latent))
        error = (decoded.float() - mel).abs()
        mean, std = latent_statistics(latent)
        shape = (mean**2).mean() + ((std - 1) ** 2).mean()
        (error.mean() + 0.2 * (error**2).mean() + STATISTICS_WEIGHT * shape).backward()
        optimisers.step(schedule.rate(), CLIP)
        average.update()
        schedule.advance()
        if schedule.step % 100 == 0 or schedule.step <= 2 or schedule.done:
            log.write(stage="vae", step=schedule.step, s=schedule.elapsed_s, l1=error.mean().item(), stats=shape.item())
    save_state(args.out, VAE_STATE, vae.state_dict())
    average.swap()
    with torch.no_grad():
        mel = log_mel(render_sound(sample_scenes(args.held_out, generator), MEL_RATE_HZ))
        mean, std = latent_statistics(torch.cat([vae.encoder(part)[:, :8] for part in mel.split(16)]))
        vae.latents_mean.copy_(mean)
        vae.latents_std.copy_(std)
    round_to_bfloat16(vae)


@torch.no_grad()
def heard_mels(vae: AutoencoderKLLTX2Audio, mel: Float[Tensor, "b 2 t m"]) -> Float[Tensor, "b 2 t m"]:
    """What the vocoder will be given: half true log-mels, half decoded from slightly noised latents."""
    half = len(mel) // 2
    latent = vae.encoder(mel[half:])[:, :8]
    noise = 0.5 * LATENT_NOISE * torch.rand(len(latent), 1, 1, 1, device=mel.device) * torch.randn_like(latent)
    return torch.cat([mel[:half], vae.decoder(latent + noise)])


def graphed(vocoder: LTX2VocoderWithBWE, args: argparse.Namespace, log: Log) -> nn.Module:
    """Replay forward and backward as CUDA graphs: thousands of small kernels a step; eager where capture is refused."""
    if args.device != "cuda":
        return vocoder
    try:
        return torch.cuda.make_graphed_callables(vocoder, (torch.randn(args.vocoder_batch, 2, 101, 64, device="cuda"),))
    except RuntimeError as error:
        log.write(stage="vocoder", event=f"no graph: {error}"[:300])
        return vocoder


def train_vocoder(
    args: argparse.Namespace,
    vae: AutoencoderKLLTX2Audio,
    vocoder: LTX2VocoderWithBWE,
    generator: torch.Generator,
    log: Log,
) -> None:
    """Second stage: both generators together; leaves averaged weights in `vocoder`."""
    schedule = Schedule(seconds=(args.seconds - args.reserve) * (1 - VAE_SHARE), max_steps=args.max_steps)
    optimisers = Optimisers(vocoder, matrix_lr=0.0, vector_lr=VOCODER_LR, to_adam=lambda _: True)
    average = Average(vocoder, AVERAGE_DECAY)
    run = graphed(vocoder, args, log)
    while not schedule.done:
        with torch.no_grad():
            scenes = sample_scenes(args.vocoder_batch, generator)
            mel, true = log_mel(render_sound(scenes, MEL_RATE_HZ)), render_sound(scenes, OUTPUT_RATE_HZ)
            heard = heard_mels(vae, mel)
        made = run(heard)
        loss = wave_loss(made, true)
        loss.backward()
        optimisers.step(schedule.rate(), CLIP, guard=True)
        average.update()
        schedule.advance()
        if schedule.step % 100 == 0 or schedule.step <= 2 or schedule.done:
            error = (made.detach() - true).abs().mean().item()
            log.write(stage="vocoder", step=schedule.step, s=schedule.elapsed_s, loss=loss.item(), wave_l1=error)
    save_state(args.out, VOCODER_STATE, vocoder.state_dict())
    average.swap()
    round_to_bfloat16(vocoder)


def save_wave(path: Path, samples: Float[Tensor, "2 n"]) -> None:
    """16-bit stereo at 48 kHz."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(OUTPUT_RATE_HZ)
        file.writeframes((samples.clamp(-1, 1) * 32767).round().short().T.contiguous().cpu().numpy().tobytes())


@torch.no_grad()
def measure(args: argparse.Namespace, vae: AutoencoderKLLTX2Audio, vocoder: LTX2VocoderWithBWE) -> dict[str, float]:
    """The whole chain on held-out sounds, with the shipped precision of weights; two of them as wav for the ear."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    vocoder.eval()
    scenes = sample_scenes(args.held_out, torch.Generator(args.device).manual_seed(HELD_OUT_SEED))
    wave16, wave48 = render_sound(scenes, MEL_RATE_HZ), render_sound(scenes, OUTPUT_RATE_HZ)
    mel = log_mel(wave16)
    decoded = torch.cat([vae.decode(vae.encode(part).latent_dist.mode()).sample for part in mel.split(16)])
    made = torch.cat([vocoder(part) for part in decoded.split(16)])
    direct = torch.cat([vocoder(part) for part in mel.split(16)])
    spectrum = torch.fft.rfft(made.flatten(0, 1)[..., :OUTPUT_RATE_HZ]).abs().unflatten(0, (-1, 2)).square().sum(1)
    heard = spectrum[:, [round(f) for f in TONE_HZ]].argmax(1)
    save_wave(
        args.out / "audio_sample.wav",
        torch.cat([torch.cat([a, b], 1) for a, b in zip(wave48[:6], made[:6], strict=True)], 1),
    )
    return {
        "n": args.held_out,
        "mel_l1": (decoded - mel).abs().mean().item(),
        "wave_l1": (made - wave48).abs().mean().item(),
        "wave_l1_true_mel": (direct - wave48).abs().mean().item(),
        "wave_mean": wave48.abs().mean().item(),
        "tone_accuracy": (heard == scenes.tone).float().mean().item(),
    }


def train(args: argparse.Namespace) -> None:
    """Both stages, the official file and the measurement."""
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    vae, vocoder = build_audio_vae(), build_vocoder()
    if args.resume:
        vae.load_state_dict(load_state(args.resume, VAE_STATE))
        vocoder.load_state_dict(load_state(args.resume, VOCODER_STATE))
    else:
        centre_on_log_mels(vae.encoder.conv_in.conv)
        centre_on_log_mels(vocoder.vocoder.conv_in)
        centre_on_log_mels(vocoder.bwe_generator.conv_in)
        nn.init.constant_(vae.decoder.conv_out.conv.bias, MEL_CENTRE)
    vae, vocoder = vae.to(args.device, memory_format=torch.channels_last), vocoder.to(args.device)
    generator = torch.Generator(args.device).manual_seed(args.seed + 29)
    log = Log(args.out / "train_audio.jsonl")
    train_vae(args, vae, generator, log)
    train_vocoder(args, vae, vocoder, generator, log)
    write_audio_vae(args.out / AUDIO_FILE, vae, vocoder)
    result = measure(args, vae, vocoder)
    log.write(event="held out", **result)
    (args.out / "audio_result.json").write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    train(options)
