"""Trains the pocket audio VAE on log-mels, then the vocoder with bandwidth extension on true and decoded log-mels.

Run as `python -m pocket.train_audio --out DIR --seconds N`; `--from DIR` starts from the audio file there, keeps
its VAE and trains the vocoder alone. No adversary: tones and clicks repeat with the hop (sound.py), so spectra and the
wave itself are enough. The vocoder sees short cuts first, mostly around clicks: a click is a hundredth of a clip, and
whole clips taught it neither clicks nor the two channels in 465 steps. Must not know pixels or words.
"""

import argparse
import json
import wave
from pathlib import Path

import torch
from diffusers import AutoencoderKLLTX2Audio
from diffusers.pipelines.ltx2.vocoder import LTX2VocoderWithBWE
from jaxtyping import Float, Int
from torch import Tensor, nn

from pocket.autoencoders import Autoencoders
from pocket.evaluate import CLICK_REACH_FRAMES, PAN_REACH, hear
from pocket.export import AUDIO_FILE, write_audio_vae
from pocket.layout import build_audio_vae, build_vocoder
from pocket.loop import Average, Log, Optimisers, Schedule, load_state, round_to_bfloat16, save_state
from pocket.scenes import FPS, Scenes, sample_scenes
from pocket.sound import HOP, HOP_S, MEL_FRAMES, MEL_RATE_HZ, OUTPUT_RATE_HZ, log_mel, render_sound

VAE_SHARE = 0.3
VAE_MATRIX_LR, VAE_VECTOR_LR, CLIP = 2e-3, 2e-3, 1.0
VOCODER_MATRIX_LR, VOCODER_VECTOR_LR = 1e-3, 5e-4  # 30 steps on a CPU: Muon at 5e-4 kept the loss, Adam at 1e-3 lost it
AVERAGE_DECAY = 0.995
LATENT_NOISE, STATISTICS_WEIGHT = 0.3, 0.02
WAVE_WEIGHT, MEL_WEIGHT = 20.0, 0.3
WINDOWS = (256, 512, 1024, 2048)
SPECTRUM_FLOOR = 1e-3
CUT_FRAMES, CUT_MARGIN = 36, 6  # mel frames of a cut, and of it at each end for which no loss is taken
CUT_SHARE, CUT_BATCH_FACTOR = 0.8, 2  # of the vocoder's time on cuts; so many more cuts than whole clips in a batch
EVENT_SCENES, EVENT_CUTS = 0.6, 0.8  # of the clips that have an event; of their cuts that contain it
SAVE_S = 60.0
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
    p.add_argument("--from", dest="start", type=Path, help="folder with an audio file: its VAE is final")
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


class _Same(nn.Module):
    """The vocoder under another name: capturing replaces the forward of the module it is given."""

    def __init__(self, vocoder: nn.Module) -> None:
        super().__init__()
        self.vocoder = vocoder

    def forward(self, mel: Float[Tensor, "b 2 t m"]) -> Float[Tensor, "b 2 n"]:
        """The vocoder's."""
        return self.vocoder(mel)


def graphed(vocoder: nn.Module, batch: int, frames: int, device: str, log: Log) -> nn.Module:
    """Replay forward and backward as CUDA graphs: thousands of small kernels a step; eager where capture is refused."""
    if device != "cuda":
        return vocoder
    try:
        return torch.cuda.make_graphed_callables(_Same(vocoder), (torch.randn(batch, 2, frames, 64, device="cuda"),))
    except RuntimeError as error:
        log.write(stage="vocoder", event=f"no graph: {error}"[:300])
        return vocoder


def eventful(count: int, generator: torch.Generator) -> Scenes:
    """Scenes of which EVENT_SCENES have a click, as far as four times as many hold so many."""
    scenes = sample_scenes(4 * count, generator)
    order = torch.argsort((scenes.event_frame[:, 0] >= 0).int(), descending=True, stable=True)
    first = round(EVENT_SCENES * count)
    return scenes.select(torch.cat([order[:first], order[len(order) - count + first :]]))


def cut_starts(scenes: Scenes, generator: torch.Generator) -> Int[Tensor, " b"]:
    """First mel frame of a cut of each clip: around its first event, or anywhere."""
    count, last, device = len(scenes), MEL_FRAMES - CUT_FRAMES, generator.device
    chance, spread = torch.rand(2, count, generator=generator, device=device)
    event = scenes.event_frame[:, 0]
    inside = CUT_MARGIN + 2 + spread * (CUT_FRAMES - 2 * CUT_MARGIN - 8)
    around = event / FPS / HOP_S - inside
    wanted = torch.where((event >= 0) & (chance < EVENT_CUTS), around, spread * (last + 1))
    return wanted.floor().long().clamp(0, last)


def cut(
    mel: Float[Tensor, "b 2 t m"], wave: Float[Tensor, "b 2 n"], start: Int[Tensor, " b"]
) -> tuple[Float[Tensor, "b 2 c m"], Float[Tensor, "b 2 k"]]:
    """CUT_FRAMES frames of each clip and their samples."""
    frame = start[:, None] + torch.arange(CUT_FRAMES, device=start.device)
    row = torch.arange(len(start), device=start.device)[:, None]
    samples = wave.unflatten(2, (MEL_FRAMES, -1))[row, :, frame]
    return mel[row, :, frame].transpose(1, 2), samples.transpose(1, 2).flatten(2)


def train_vocoder(
    args: argparse.Namespace,
    vae: AutoencoderKLLTX2Audio,
    vocoder: LTX2VocoderWithBWE,
    generator: torch.Generator,
    log: Log,
) -> None:
    """Second stage: both generators together, on cuts and then on whole clips; leaves averaged weights in `vocoder`."""
    share = 1.0 if args.start else 1 - VAE_SHARE
    schedule = Schedule(seconds=(args.seconds - args.reserve) * share, max_steps=args.max_steps)
    optimisers = Optimisers(
        vocoder,
        matrix_lr=VOCODER_MATRIX_LR,
        vector_lr=VOCODER_VECTOR_LR,
        to_adam=lambda n: any(part in n for part in ("upsamplers", "conv_in", "conv_out")),
    )
    average = Average(vocoder, AVERAGE_DECAY)
    many, few = args.vocoder_batch * CUT_BATCH_FACTOR, args.vocoder_batch
    on_cuts = graphed(vocoder, many, CUT_FRAMES, args.device, log)
    on_clips = graphed(vocoder, few, MEL_FRAMES, args.device, log)
    hop = HOP * OUTPUT_RATE_HZ // MEL_RATE_HZ
    inner = slice(CUT_MARGIN * hop, (CUT_FRAMES - CUT_MARGIN) * hop)
    saved_s = schedule.elapsed_s
    while not schedule.done:
        cutting = schedule.share < CUT_SHARE
        with torch.no_grad():
            scenes = eventful(many if cutting else few, generator)
            mel, true = log_mel(render_sound(scenes, MEL_RATE_HZ)), render_sound(scenes, OUTPUT_RATE_HZ)
            heard = heard_mels(vae, mel)
            if cutting:
                heard, true = cut(heard, true, cut_starts(scenes, generator))
        made = (on_cuts if cutting else on_clips)(heard)
        if cutting:
            made, true = made[..., inner], true[..., inner]
        loss = wave_loss(made, true)
        loss.backward()
        optimisers.step(schedule.rate(), CLIP, guard=True)
        average.update()
        schedule.advance()
        if schedule.step % 100 == 0 or schedule.step <= 2 or schedule.done:
            error = (made.detach() - true).abs().mean().item()
            log.write(stage="vocoder", step=schedule.step, s=schedule.elapsed_s, loss=loss.item(), wave_l1=error)
        if schedule.elapsed_s - saved_s > SAVE_S:
            saved_s = schedule.elapsed_s
            save_state(args.out, VOCODER_STATE, vocoder.state_dict())
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
        **{name: value / args.held_out for name, value in heard_right(scenes, made).items()},
    }


def heard_right(scenes: Scenes, waves: Float[Tensor, "b 2 n"]) -> dict[str, int]:
    """How many waves have the tone of their scene, its clicks and no others, and its place between the channels."""
    heard, truth = hear(waves), hear(render_sound(scenes, OUTPUT_RATE_HZ))
    pairs = list(zip(heard, truth, strict=True))
    return {
        "tone": sum(h.tone == t for h, t in zip(heard, scenes.tone.tolist(), strict=True)),
        "clicks": sum(
            len(h.click_frames) == len(t.click_frames)
            and all(abs(a - b) <= CLICK_REACH_FRAMES for a, b in zip(h.click_frames, t.click_frames, strict=True))
            for h, t in pairs
        ),
        "pan": sum(abs(h.pan_ratio - t.pan_ratio) < PAN_REACH for h, t in pairs),
    }


def train(args: argparse.Namespace) -> None:
    """Both stages, the official file and the measurement."""
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    vae, vocoder = build_audio_vae(), build_vocoder()
    if args.start:
        loaded = Autoencoders.load(args.start, "cpu")
        vae, vocoder = loaded.audio, loaded.vocoder.requires_grad_(True).train()
        if args.resume:
            vocoder.load_state_dict(load_state(args.resume, VOCODER_STATE))
    elif args.resume:
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
    if not args.start:
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
