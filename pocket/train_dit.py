"""Trains the pocket transformer, connectors, text projection and tiny Gemma together by flow matching on latents.

Run as `python -m pocket.train_dit --models DIR --out DIR --seconds N`; DIR holds the trained video and audio VAE files.
Clips are drawn and encoded on the device into a pool that is refreshed all the time.
"""

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLLTX2Audio, AutoencoderKLLTX2Video
from jaxtyping import Float, Int
from torch import Tensor, nn

from pocket import network
from pocket.captions import Caption, describe
from pocket.data import render_video
from pocket.evaluate import listen, scores, see, table
from pocket.export import AUDIO_FILE, TEXT_FILE, TRANSFORMER_FILE, VIDEO_FILE, write_text, write_transformer
from pocket.layout import build_audio_vae, build_video_vae, build_vocoder
from pocket.loop import Average, Log, Optimisers, Schedule, load_state, round_to_bfloat16, save_state
from pocket.sampling import Contexts, Scales, noise, sample
from pocket.scenes import TONE_OF_SHAPE, sample_scenes
from pocket.sound import MEL_RATE_HZ, log_mel, render_sound
from pocket.text import HIDDEN, LAYERS, Ids, build_gemma, hidden_states
from pocket.train_audio import save_wave
from shotclock.geometry import patchify_audio, patchify_video, unpatchify_audio, unpatchify_video
from shotclock.render.text import DEFAULT_NEGATIVE_PROMPT, FeatureProjection
from shotclock.schedule import MAX_SHIFT
from shotclock.weights import keys
from shotclock.weights.header import read_header
from shotclock.weights.load import mapped_tensors

MATRIX_LR, VECTOR_LR, CLIP = 2e-3, 1e-3, 1.0
AVERAGE_DECAY = 0.9990
AUDIO_WEIGHT = 1.0
DROP_EMPTY, DROP_NEGATIVE = 0.08, 0.04  # captions replaced by "" and by the default negative prompt
ISOLATED, FIRST_FRAME_CLEAN, SOUND_CLEAN = 0.10, 0.08, 0.05
UNIFORM_SIGMAS = 0.4  # share of sigmas drawn uniformly; the rest follow the official schedule's density
CAPTION_VARIANTS, CAPTION_TOKENS, NEGATIVE_TOKENS = 4, 32, 64
HELD_OUT_SEED = 2_000_003
STATE = "dit_state"
ADAM_PARTS = ("patchify_proj", "proj_out", "embed_tokens", "learnable_registers", "scale_shift_table", "keyframes")


def arguments() -> argparse.Namespace:
    """Command line."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--models", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--resume", type=Path, help="folder with dit_state.*.safetensors")
    p.add_argument("--seconds", type=float, default=520.0)
    p.add_argument("--reserve", type=float, default=75.0, help="seconds kept for evaluation and writing")
    p.add_argument("--max-steps", type=int, default=10**9)
    p.add_argument("--batch", type=int, default=256)
    p.add_argument("--pool", type=int, default=49152, help="clips kept as latents")
    p.add_argument("--fill", type=int, default=8192, help="clips drawn before the first step")
    p.add_argument("--fresh", type=int, default=16, help="clips drawn in each step")
    p.add_argument("--clips", type=int, default=200, help="held-out captions of the evaluation")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--compile", action="store_true")
    return p.parse_args()


def _load(module: nn.Module, header: Any, names: dict[str, str]) -> None:
    """Fill a module from an official file, statistics included."""
    tensors = mapped_tensors(header, names, dtype=torch.float32)
    missing = set(module.state_dict()) - set(tensors)
    module.load_state_dict(dict(tensors), strict=False)
    assert not missing, f"the file gives no {sorted(missing)[:3]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoencoders:
    """The trained, frozen autoencoders: clips to normalised tokens and back."""

    video: AutoencoderKLLTX2Video
    audio: AutoencoderKLLTX2Audio
    vocoder: nn.Module
    device: str

    @classmethod
    def load(cls, folder: Path, device: str) -> "Autoencoders":
        """From the official-format files of the first stage."""
        video, audio, vocoder = build_video_vae(), build_audio_vae(), build_vocoder()
        header = read_header(folder / VIDEO_FILE)
        mine = {keys.MEAN_KEY: "latents_mean", keys.STD_KEY: "latents_std"}
        _load(video, header, dict(keys.video_vae(header).names) | mine)
        header = read_header(folder / AUDIO_FILE)
        mine = {keys.AUDIO_PREFIX + k: v for k, v in mine.items()}
        _load(audio, header, dict(keys.audio_vae(header).names) | mine)
        _load(vocoder, header, dict(keys.vocoder(header).names))
        for module in (video, audio, vocoder):
            module.to(device).eval().requires_grad_(False)
        return cls(video=video.to(memory_format=torch.channels_last_3d), audio=audio, vocoder=vocoder, device=device)

    @torch.no_grad()
    def encode(self, clip: Float[Tensor, "b 3 f h w"], wave: Float[Tensor, "b 2 n"]) -> tuple[Tensor, Tensor]:
        """Normalised video and audio tokens."""
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            v = self.video.encoder(clip)[:, :128].float()
            a = self.audio.encoder(log_mel(wave))[:, :8].float()
        v = (v - self.video.latents_mean[:, None, None, None]) / self.video.latents_std[:, None, None, None]
        return patchify_video(v), (patchify_audio(a) - self.audio.latents_mean) / self.audio.latents_std

    @torch.no_grad()
    def decode(self, video: Float[Tensor, "b n 128"], audio: Float[Tensor, "b m 128"]) -> tuple[Tensor, Tensor]:
        """Frames (b f h w 3) in [0, 1] and waves (b 2 n) at 48 kHz, in float32."""
        v = unpatchify_video(video, network.GEOMETRY)
        v = v * self.video.latents_std[:, None, None, None] + self.video.latents_mean[:, None, None, None]
        a = unpatchify_audio(audio * self.audio.latents_std + self.audio.latents_mean)
        frames = torch.cat([self.video.decode(part).sample for part in v.split(8)])
        waves = torch.cat([self.vocoder(self.audio.decode(part).sample) for part in a.split(16)])
        return ((frames + 1) / 2).clamp(0, 1).permute(0, 2, 3, 4, 1), waves


@dataclass(slots=True)
class Pool:
    """A ring of encoded clips with several captions each, on the device."""

    size: int
    autoencoders: Autoencoders
    seed: int
    video: Tensor = field(init=False)
    audio: Tensor = field(init=False)
    ids: Tensor = field(init=False)
    valid: Tensor = field(init=False)
    drawn: int = field(init=False, default=0)
    _scenes: torch.Generator = field(init=False)
    _words: Ids = field(init=False)

    def __post_init__(self) -> None:
        device, geometry = self.autoencoders.device, network.GEOMETRY
        half = torch.bfloat16
        self.video = torch.zeros(self.size, geometry.video_tokens, 128, device=device, dtype=half)
        self.audio = torch.zeros(self.size, geometry.audio_tokens, 128, device=device, dtype=half)
        self.ids = torch.zeros(self.size, CAPTION_VARIANTS, CAPTION_TOKENS, device=device, dtype=torch.int64)
        self.valid = torch.ones(self.size, CAPTION_VARIANTS, device=device, dtype=torch.int64)
        self._scenes = torch.Generator().manual_seed(self.seed)
        self._words = Ids()

    def draw(self, count: int) -> None:
        """Draw, encode and store `count` new clips over the oldest."""
        device = self.autoencoders.device
        scenes = sample_scenes(count, self._scenes)
        texts = [
            describe(scenes, self.seed + self.drawn * CAPTION_VARIANTS + k, held_out=False)
            for k in range(CAPTION_VARIANTS)
        ]
        flat = [row[i].text for i in range(count) for row in texts]
        ids, valid = self._words.batch(flat, CAPTION_TOKENS)
        there = scenes.to(device)
        clip, _ = render_video(there)
        video, audio = self.autoencoders.encode(clip, render_sound(there, MEL_RATE_HZ))
        where = (torch.arange(count) + self.drawn) % self.size
        where = where.to(device)
        self.video[where], self.audio[where] = video.bfloat16(), audio.bfloat16()
        self.ids[where] = ids.view(count, CAPTION_VARIANTS, -1).to(device)
        self.valid[where] = valid.view(count, CAPTION_VARIANTS).to(device)
        self.drawn += count

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Random clips with one caption each: video and audio tokens, ids, number of real ids."""
        device = self.autoencoders.device
        row = torch.randint(min(self.drawn, self.size), (count,), generator=generator, device=device)
        variant = torch.randint(CAPTION_VARIANTS, (count,), generator=generator, device=device)
        return self.video[row].float(), self.audio[row].float(), self.ids[row, variant], self.valid[row, variant]


class Network(nn.Module):
    """Everything that is trained in this stage."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer, self.connectors = network.build()
        self.gemma = build_gemma()
        width = network.HEADS * network.HEAD_DIM
        audio_width = network.HEADS * network.AUDIO_HEAD_DIM
        self.projection = FeatureProjection(inputs=HIDDEN * (LAYERS + 1), video_width=width, audio_width=audio_width)

    def features(self, ids: Int[Tensor, "b s"], valid: Int[Tensor, " b"]) -> tuple[Tensor, Tensor]:
        """Projected text features of tokenised captions, padded on the right."""
        hidden = hidden_states(self.gemma, ids)
        mask = (torch.arange(ids.shape[1], device=ids.device)[None] < valid[:, None]).long()
        return self.projection(hidden, mask)

    def contexts(self, ids: Int[Tensor, "b s"], valid: Int[Tensor, " b"]) -> tuple[Tensor, Tensor]:
        """Contexts of tokenised captions, padded on the right."""
        return network.contexts(self.connectors, self.features(ids, valid), valid)


def draw_sigmas(count: int, generator: torch.Generator) -> Float[Tensor, " b"]:
    """Sigmas of a step: a part uniform, the rest uniform along the official shifted schedule."""
    device = generator.device
    u = torch.rand(count, generator=generator, device=device).clamp(1e-4, 1)
    shift = float(torch.tensor(MAX_SHIFT).exp())
    shifted = shift / (shift + 1 / u - 1)
    return torch.where(torch.rand(count, generator=generator, device=device) < UNIFORM_SIGMAS, u, shifted)


def drop_captions(
    ids: Int[Tensor, "b s"], valid: Int[Tensor, " b"], negative: Int[Tensor, " k"], generator: torch.Generator
) -> tuple[Int[Tensor, "b k"], Int[Tensor, " b"]]:
    """Replace some captions by the empty one and some by the negative prompt; all padded to its length."""
    chance = torch.rand(len(ids), generator=generator, device=ids.device)
    wide = nn.functional.pad(ids, (0, len(negative) - ids.shape[1]))
    takes_negative = chance > 1 - DROP_NEGATIVE
    wide = torch.where(takes_negative[:, None], negative, wide)
    valid = torch.where(takes_negative, len(negative), valid)
    return wide, torch.where(chance < DROP_EMPTY, 1, valid)


def negative_ids() -> Int[Tensor, " k"]:
    """The default negative prompt as the shipped tokenizer gives it."""
    return torch.tensor(Ids().of(DEFAULT_NEGATIVE_PROMPT)[:NEGATIVE_TOKENS])


def noisy_batch(
    video: Tensor, audio: Tensor, texts: tuple[Tensor, Tensor], generator: torch.Generator
) -> tuple[network.Batch, Tensor, Tensor]:
    """Noise latents at drawn sigmas; some rows isolated, with a clean first frame, or clean sound; and the targets."""
    b, device = len(video), video.device
    sigma = draw_sigmas(b, generator)
    chance = torch.rand(3, b, generator=generator, device=device)
    clean = (chance[1] < FIRST_FRAME_CLEAN)[:, None] & (torch.arange(video.shape[1], device=device) < 40)[None]
    sigma_a = torch.where(chance[2] < SOUND_CLEAN, 0.0, sigma)
    noise_v = torch.randn(video.shape, generator=generator, device=device)
    noise_a = torch.randn(audio.shape, generator=generator, device=device)
    time = torch.where(clean, 0.0, sigma[:, None])[..., None]
    time_a = sigma_a[:, None, None]
    batch = network.Batch(
        video=torch.lerp(video, noise_v, time.expand_as(video)),
        audio=torch.lerp(audio, noise_a, time_a.expand_as(audio)),
        video_sigma=sigma,
        audio_sigma=sigma_a,
        video_clean=clean,
        video_context=texts[0],
        audio_context=texts[1],
        cross=(chance[0] >= ISOLATED).float(),
        attend_self=torch.ones(b, device=device),
    )
    return batch, noise_v - video, noise_a - audio


def flow_loss(velocity: Tensor, target: Tensor, weight: Tensor) -> Float[Tensor, ""]:
    """Mean squared error of the velocities where `weight` is 1."""
    return ((velocity - target).square().mean(-1) * weight).sum() / weight.sum().clamp(min=1)


def train(args: argparse.Namespace) -> None:
    """The whole run."""
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    schedule = Schedule(seconds=args.seconds - args.reserve, max_steps=args.max_steps)
    log = Log(args.out / "train_dit.jsonl")
    pool = Pool(args.pool, Autoencoders.load(args.models, args.device), args.seed + 41)
    net = Network()
    if args.resume:
        net.load_state_dict(load_state(args.resume, STATE), strict=False)
    net = net.to(args.device)
    tables = network.Tables.of(net.transformer, args.device)
    optimisers = Optimisers(
        net, matrix_lr=MATRIX_LR, vector_lr=VECTOR_LR, to_adam=lambda n: any(part in n for part in ADAM_PARTS)
    )
    average = Average(net, AVERAGE_DECAY)
    generator = torch.Generator(args.device).manual_seed(args.seed + 43)
    negative = negative_ids().to(args.device)

    def losses(batch: network.Batch, target_v: Tensor, target_a: Tensor) -> tuple[Tensor, Tensor]:
        v, a = network.forward(net.transformer, batch, tables)
        return (
            flow_loss(v, target_v, (~batch.video_clean).float()),
            flow_loss(a, target_a, (batch.audio_sigma > 0).float()[:, None].expand(a.shape[:2])),
        )

    connect = network.contexts
    if args.compile:
        torch._dynamo.config.suppress_errors = True
        torch._dynamo.config.cache_size_limit = 64
        losses = torch.compile(losses)
        connect = torch.compile(connect)
    while pool.drawn < args.fill:
        pool.draw(min(64, args.fill))
    log.write(event="pool", s=schedule.elapsed_s, clips=pool.drawn)
    sums = torch.zeros(2, device=args.device)
    while not schedule.done:
        pool.draw(args.fresh)
        video, audio, ids, valid = pool.sample(args.batch, generator)
        ids, valid = drop_captions(ids, valid, negative, generator)
        with torch.autocast(args.device, torch.bfloat16, enabled=args.device == "cuda"):
            texts = connect(net.connectors, net.features(ids, valid), valid)
            batch, target_v, target_a = noisy_batch(video, audio, texts, generator)
            loss_v, loss_a = losses(batch, target_v, target_a)
        (loss_v + AUDIO_WEIGHT * loss_a).backward()
        optimisers.step(schedule.rate(), CLIP)
        average.update()
        sums += torch.stack([loss_v.detach(), loss_a.detach()])
        schedule.advance()
        if schedule.step % 100 == 0 or schedule.step <= 2 or schedule.done:
            v, a = (sums / (100 if schedule.step % 100 == 0 else 1)).tolist()
            sums.zero_()
            log.write(
                step=schedule.step, s=schedule.elapsed_s, share=schedule.share, video=v, audio=a, clips=pool.drawn
            )
    finish(args, net, average, pool.autoencoders, log)


def finish(args: argparse.Namespace, net: Network, average: Average, autoencoders: Autoencoders, log: Log) -> None:
    """State to resume from, the two official files of the averaged weights, and what they reach."""
    save_state(args.out, STATE, net.state_dict())
    average.swap()
    round_to_bfloat16(net)
    write_transformer(args.out / TRANSFORMER_FILE, net.transformer, net.connectors)
    write_text(args.out / TEXT_FILE, net.gemma, net.projection)
    tables = network.Tables.of(net.transformer, args.device)
    net.eval()
    results = {}
    default = Scales()
    for name, scales, clips in (
        ("default", default, args.clips),
        ("cfg 1", Scales(cfg=(1.0, 1.0)), args.clips),
        ("modality off", Scales(modality=(1.0, 1.0)), args.clips),
        ("stg off", Scales(stg=(0.0, 0.0)), args.clips),
        ("plain", Scales(cfg=(1.0, 1.0), stg=(0.0, 0.0), modality=(1.0, 1.0), rescale=(0.0, 0.0)), args.clips),
    ):
        results[name] = judge(net, tables, autoencoders, scales, clips, args, name)
        print(name, table(results[name]), sep="\n", flush=True)
    written = {n: {k: [s.hits, s.trials] for k, s in r.items()} for n, r in results.items()}
    (args.out / "dit_result.json").write_text(json.dumps(written) + "\n")
    log.write(event="judged", **{k: s.ratio for k, s in results["default"].items()})


@torch.no_grad()
def held_out(net: Network, count: int, device: str) -> tuple[list[Caption], Contexts]:
    """Held-out captions and their contexts, with those of the empty negative prompt."""
    scenes = sample_scenes(count, torch.Generator().manual_seed(HELD_OUT_SEED))
    captions = describe(scenes, HELD_OUT_SEED, held_out=True)
    ids, valid = Ids().batch([*(c.text for c in captions), ""], CAPTION_TOKENS)
    video, audio = (
        torch.cat(parts)
        for parts in zip(
            *(net.contexts(i.to(device), v.to(device)) for i, v in zip(ids.split(32), valid.split(32), strict=True)),
            strict=True,
        )
    )
    return captions, Contexts(video=video[:-1], audio=audio[:-1], negative_video=video[-1:], negative_audio=audio[-1:])


@torch.no_grad()
def judge(
    net: Network,
    tables: network.Tables,
    autoencoders: Autoencoders,
    scales: Scales,
    count: int,
    args: argparse.Namespace,
    name: str,
) -> dict[str, Any]:
    """Render held-out captions and score them; the first ones of the default as pictures and sound."""
    captions, texts = held_out(net, count, args.device)
    start = noise(count, HELD_OUT_SEED, args.device)
    seen, heard = [], []
    for first in range(0, count, 50):
        part = slice(first, first + 50)
        some = Contexts(
            video=texts.video[part],
            audio=texts.audio[part],
            negative_video=texts.negative_video,
            negative_audio=texts.negative_audio,
        )
        with torch.autocast(args.device, torch.bfloat16, enabled=args.device == "cuda"):
            tokens = sample(net.transformer, tables, some, (start[0][part], start[1][part]), scales)
        frames, waves = autoencoders.decode(tokens[0].float(), tokens[1].float())
        seen += [see(f) for f in frames]
        heard += [listen(w) for w in waves]
        if first == 0 and name == "default":
            show(args.out, captions, frames, waves)
    return scores(captions, seen, heard, TONE_OF_SHAPE)


def show(out: Path, captions: list[Caption], frames: Float[Tensor, "b f h w 3"], waves: Float[Tensor, "b 2 n"]) -> None:
    """Five frames of each of the first clips, and their sounds one after another."""
    from PIL import Image

    rows = frames[:12, ::6].permute(0, 2, 1, 3, 4).reshape(-1, 5 * frames.shape[3], 3)
    Image.fromarray((rows * 255).byte().cpu().numpy()).resize((rows.shape[1] // 2, rows.shape[0] // 2)).save(
        out / "dit_strip.png"
    )
    save_wave(out / "dit_sample.wav", torch.cat(list(waves[:12]), 1))
    (out / "dit_captions_result.json").write_text(json.dumps([c.text for c in captions[:12]]) + "\n")


if __name__ == "__main__":
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    train(options)
