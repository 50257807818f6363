"""Trains the pocket transformer, connectors, text projection and tiny Gemma together by flow matching on latents.

Run as `python -m pocket.train_dit --models DIR --out DIR --seconds N`; DIR holds the trained video and audio VAE files.
A step is groups of clips (pool.py): one caption, context and sigma a group, several clips and noises. On a GPU a whole
step, update included, is one CUDA graph; state is written every minute.
"""

import argparse
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pocket import network
from pocket.autoencoders import Autoencoders
from pocket.flat import FlatWeights
from pocket.judge import Court, settings_of
from pocket.loop import Log, Schedule, load_state
from pocket.pool import Pool
from pocket.speed import accelerated
from pocket.text import Ids
from pocket.whole import AVERAGE, STATE, Whole, save_weights
from shotclock.render.text import DEFAULT_NEGATIVE_PROMPT
from shotclock.schedule import MAX_SHIFT

MATRIX_LR, VECTOR_LR, CLIP = 2e-3, 1e-3, 1.0
AVERAGE_DECAY = 0.999
AUDIO_WEIGHT = 1.0
DROP_EMPTY, DROP_NEGATIVE = 0.06, 0.06  # captions replaced by "" and by the default negative prompt
ISOLATED, FIRST_FRAME_CLEAN, SOUND_CLEAN = 0.10, 0.08, 0.05
FIRST_FRAME_TOKENS = network.GEOMETRY.rows * network.GEOMETRY.columns
UNIFORM_SIGMAS = 0.4  # share of sigmas drawn uniformly; the rest follow the official schedule's density
NEGATIVE_TOKENS = 64
ADAM_PARTS = (
    "patchify_proj",
    "proj_out",
    "embed_tokens",
    "learnable_registers",
    "scale_shift_table",
    "keyframes",
    "adaln",
)
DRAWN_AT_ONCE = 16  # groups
LOG_EVERY = 100
STEPS_AHEAD = 2  # steps the CPU may be ahead of the GPU: the schedule goes by the clock


def arguments() -> argparse.Namespace:
    """Command line."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--models", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--resume", type=Path, help="folder with dit_state.* and dit_average.*")
    p.add_argument("--seconds", type=float, default=520.0)
    p.add_argument("--reserve", type=float, default=75.0, help="seconds kept for evaluation and writing")
    p.add_argument("--max-steps", type=int, default=10**9)
    p.add_argument(
        "--decay-from", type=float, default=0.4, help="share of the run where the rate begins to fall; 1: never"
    )
    p.add_argument("--groups", type=int, default=32, help="captions a step")
    p.add_argument("--members", type=int, default=4, help="clips a caption")
    p.add_argument("--pool", type=int, default=16384, help="groups kept as latents")
    p.add_argument("--fill", type=int, default=2048, help="groups drawn before the first step")
    p.add_argument("--fresh-every", type=int, default=16, help="steps after which 16 groups are replaced")
    p.add_argument("--save-s", type=float, default=60.0)
    p.add_argument("--clips", type=int, default=200, help="held-out captions of the evaluation; 0 for none")
    p.add_argument("--quick", action="store_true", help="judge the default and cfg 1 alone")
    p.add_argument("--seed", type=int, default=0, help="another one for every part of a run: new clips")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return p.parse_args()


def draw_sigmas(count: int, device: str) -> Float[Tensor, " u"]:
    """Sigmas of a step, one a group, spread evenly: a part uniform, the rest uniform along the official schedule."""
    u = ((torch.arange(count, device=device) + torch.rand(count, device=device)) / count).clamp(1e-4, 1)
    shift = math.exp(MAX_SHIFT)
    return torch.where(torch.rand(count, device=device) < UNIFORM_SIGMAS, u, shift / (shift + 1 / u - 1))


def drop_captions(
    ids: Int[Tensor, "u s"], valid: Int[Tensor, " u"], negative: Int[Tensor, " k"]
) -> tuple[Int[Tensor, "u k"], Int[Tensor, " u"]]:
    """Replace some captions by the empty one and some by the negative prompt; all padded to its length."""
    chance = torch.rand(len(ids), device=ids.device)
    wide = nn.functional.pad(ids, (0, len(negative) - ids.shape[1]))
    takes_negative = chance > 1 - DROP_NEGATIVE
    wide = torch.where(takes_negative[:, None], negative, wide)
    valid = torch.where(takes_negative, len(negative), valid)
    return wide, torch.where(chance < DROP_EMPTY, 1, valid)


def negative_ids() -> Int[Tensor, " k"]:
    """The default negative prompt as the shipped tokenizer gives it."""
    return torch.tensor(Ids().of(DEFAULT_NEGATIVE_PROMPT)[:NEGATIVE_TOKENS])


def noisy_batch(
    video: Float[Tensor, "b n 128"], audio: Float[Tensor, "b m 128"], texts: tuple[Tensor, Tensor]
) -> tuple[network.Batch, Tensor, Tensor]:
    """Noise latents at drawn sigmas; some rows isolated or with a clean first frame, some groups with clean sound."""
    b, groups, device = len(video), len(texts[0]), video.device
    each = b // groups
    sigma = draw_sigmas(groups, device)
    sigma_a = torch.where(torch.rand(groups, device=device) < SOUND_CLEAN, 0.0, sigma)
    sigma, sigma_a = sigma.repeat_interleave(each), sigma_a.repeat_interleave(each)
    chance = torch.rand(2, b, device=device)
    first = torch.arange(video.shape[1], device=device) < FIRST_FRAME_TOKENS
    clean = (chance[1] < FIRST_FRAME_CLEAN)[:, None] & first[None]
    noise_v, noise_a = torch.randn_like(video), torch.randn_like(audio)
    time = torch.where(clean, 0.0, sigma[:, None])[..., None]
    batch = network.Batch(
        video=torch.lerp(video, noise_v, time.expand_as(video)),
        audio=torch.lerp(audio, noise_a, sigma_a[:, None, None].expand_as(audio)),
        video_sigma=sigma,
        audio_sigma=sigma_a,
        video_clean=clean,
        video_context=texts[0],
        audio_context=texts[1],
        cross=(chance[0] >= ISOLATED).float(),
    )
    return batch, noise_v - video, noise_a - audio


def flow_loss(velocity: Tensor, target: Tensor, weight: Tensor) -> Float[Tensor, ""]:
    """Mean squared error of the velocities where `weight` is 1."""
    return ((velocity - target).square().mean(-1) * weight).sum() / weight.sum().clamp(min=1)


@dataclass(slots=True, kw_only=True)
class Step:
    """One training step: reads the pool, updates the weights, adds its losses to `sums`. Reads nothing back."""

    whole: Whole
    weights: FlatWeights
    pool: Pool
    groups: int
    tables: network.Tables
    negative: Int[Tensor, " k"]
    sums: Float[Tensor, "2"]

    def losses(self) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Losses of the video and audio velocities on a random batch."""
        video, audio, ids, valid = self.pool.sample(self.groups)
        ids, valid = drop_captions(ids, valid, self.negative)
        texts = self.whole.contexts(ids, valid, self.tables)
        batch, target_v, target_a = noisy_batch(video, audio, texts)
        v, a = network.forward(self.whole.transformer, batch, self.tables)
        assert batch.video_clean is not None, "some rows have a clean first frame"
        return (
            flow_loss(v, target_v, (~batch.video_clean).float()),
            flow_loss(a, target_a, (batch.audio_sigma > 0).float()[:, None].expand(a.shape[:2])),
        )

    def __call__(self) -> None:
        """Losses, gradients, update."""
        loss_v, loss_a = self.losses()
        (loss_v + AUDIO_WEIGHT * loss_a).backward()
        self.weights.step(matrix_lr=MATRIX_LR, vector_lr=VECTOR_LR, clip=CLIP)
        self.sums += torch.stack([loss_v.detach(), loss_a.detach()])


def prepare(args: argparse.Namespace, log: Log) -> Step:
    """Load, resume and fill the pool."""
    began_s = time.monotonic()
    pool = Pool(args.pool, args.members, Autoencoders.load(args.models, args.device), (args.seed + 41) * 1_000_003)
    whole = Whole().to(args.device)
    weights = FlatWeights(
        whole,
        dtype=torch.bfloat16 if args.device == "cuda" else torch.float32,
        to_adam=lambda n: any(part in n for part in ADAM_PARTS),
        average_decay=AVERAGE_DECAY,
    )
    if args.resume:
        weights.load(load_state(args.resume, STATE), load_state(args.resume, AVERAGE) or None)
    while pool.drawn < args.fill:
        pool.draw(min(DRAWN_AT_ONCE, args.fill))
    log.write(event="pool", s=time.monotonic() - began_s, clips=pool.clips)
    return Step(
        whole=whole,
        weights=weights,
        pool=pool,
        groups=args.groups,
        tables=whole.tables(args.device),
        negative=negative_ids().to(args.device),
        sums=torch.zeros(2, device=args.device),
    )


class Pace:
    """Keeps the CPU at most STEPS_AHEAD steps ahead of the GPU."""

    def __init__(self, device: str) -> None:
        self._events: deque[torch.cuda.Event] | None = deque() if device == "cuda" else None

    def __call__(self) -> None:
        """Call after each step."""
        if self._events is None:
            return
        event = torch.cuda.Event()
        event.record()
        self._events.append(event)
        if len(self._events) > STEPS_AHEAD:
            self._events.popleft().synchronize()


def loop(args: argparse.Namespace, step: Step, run: Callable[[], None], schedule: Schedule, log: Log) -> None:
    """Steps until the time is over."""
    pace, saved_s, logged = Pace(args.device), time.monotonic(), 0
    step.sums.zero_()
    while not schedule.done:
        step.weights.rate.fill_(schedule.rate())
        run()
        pace()
        schedule.advance()
        if schedule.step % args.fresh_every == 0:
            step.pool.draw(min(DRAWN_AT_ONCE, args.pool))
        if schedule.step % LOG_EVERY == 0 or schedule.done:
            v, a = (step.sums / (schedule.step - logged)).tolist()
            step.sums.zero_()
            logged = schedule.step
            clips, share = step.pool.clips, schedule.share
            log.write(step=schedule.step, s=schedule.elapsed_s, share=share, video=v, audio=a, clips=clips)
        if time.monotonic() - saved_s > args.save_s:
            saved_s = time.monotonic()
            save(args.out, step.weights)


def save(out: Path, weights: FlatWeights) -> None:
    """State to resume from."""
    save_weights(out, weights.named(weights.master), weights.named(weights.average))


def train(args: argparse.Namespace) -> None:
    """The whole run; the time of preparing counts."""
    schedule = Schedule(seconds=args.seconds - args.reserve, max_steps=args.max_steps, decay_from=args.decay_from)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    log = Log(args.out / "train_dit.jsonl")
    step = prepare(args, log)
    run = accelerated(step, args.device, log)
    loop(args, step, run, schedule, log)
    save(args.out, step.weights)
    step.weights.use_average()
    step.whole.eval()
    if args.clips:
        Court.open(step.whole, step.pool.autoencoders, args.clips).judge(settings_of(not args.quick), args.out, log)


if __name__ == "__main__":
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    train(options)
