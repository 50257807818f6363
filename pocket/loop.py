"""What every pocket trainer shares: a time-bounded schedule, averaged weights, the optimiser, the log and the state.

Must not know what is trained. A run ends by the clock: the learning rate follows the share of the time that is spent.
"""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

PART_BYTES = 15_000_000  # state files stay under 16 MiB each
WARM_UP_RATIO, DECAY_FROM_RATIO = 0.02, 0.55
NEWTON_SCHULZ = (
    3.4445,
    -4.7750,
    2.0315,
)  # Muon (Jordan et al. 2024): quintic iteration to the nearest orthogonal matrix
NEWTON_SCHULZ_STEPS = 5
MOMENTUM = 0.95
SMALLEST_MATRIX = 8  # kernels with a side below this are left to Adam


@dataclass(slots=True, kw_only=True)
class Schedule:
    """Share of a run that is done, by wall time and by steps, whichever is further."""

    seconds: float
    max_steps: int
    decay_from: float = DECAY_FROM_RATIO  # share of the run after which the rate falls; 1 for never
    clock: Callable[[], float] = time.monotonic
    begun_s: float = field(init=False)
    first_s: float | None = field(init=False, default=None)
    step: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.begun_s = self.clock()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began, compilation included."""
        return self.clock() - self.begun_s

    @property
    def share(self) -> float:
        """0 at the end of the second step (compilation is over), 1 at the deadline."""
        if self.first_s is None:
            return self.step / self.max_steps
        spent = (self.clock() - self.first_s) / max(self.begun_s + self.seconds - self.first_s, 1e-9)
        return min(1.0, max(spent, self.step / self.max_steps))

    @property
    def done(self) -> bool:
        """Whether time or steps are used up."""
        return self.step >= self.max_steps or self.elapsed_s >= self.seconds

    def advance(self) -> None:
        """Count a finished step."""
        self.step += 1
        if self.step == 2:
            self.first_s = self.clock()

    def rate(self) -> float:
        """Factor of the learning rate: warm-up, plateau, linear decay to zero."""
        share = self.share
        falling = (1 - share) / (1 - self.decay_from) if self.decay_from < 1 else 1.0
        return min(1.0, (share + 1e-4) / WARM_UP_RATIO, max(0.0, falling))


def orthogonal(update: Float[Tensor, "k n m"]) -> Float[Tensor, "k n m"]:
    """Nearest semi-orthogonal matrices, about: five Newton-Schulz steps, in bfloat16 on a GPU."""
    a, b, c = NEWTON_SCHULZ
    x = update.to(torch.bfloat16 if update.is_cuda else torch.float32)
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.transpose(1, 2) if tall else x).to(update.dtype)


class Muon(torch.optim.Optimizer):
    """Momentum whose update of each matrix is made orthogonal (Muon); kernels count as (out, in * taps) matrices."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(list(parameters), {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update; matrices of equal shape are treated in one batch."""
        assert closure is None
        for group in self.param_groups:
            shapes: dict[tuple[int, int], list[nn.Parameter]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    shapes.setdefault((p.shape[0], p[0].numel()), []).append(p)
            for (rows, columns), ps in shapes.items():
                updates = torch.stack([self._momentum(p).reshape(rows, columns) for p in ps])
                scale = group["lr"] * 0.2 * max(rows, columns) ** 0.5  # update RMS as of Adam (Moonlight, 2025)
                for p, u in zip(ps, orthogonal(updates), strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(u.reshape(p.shape), alpha=-scale)

    def _momentum(self, p: nn.Parameter) -> Tensor:
        grad = p.grad
        assert grad is not None
        buffer = self.state[p].setdefault("momentum", torch.zeros_like(grad))
        buffer.lerp_(grad, 1 - MOMENTUM)
        return grad.lerp(buffer, MOMENTUM)


class Optimisers:
    """Muon for the inner matrices and kernels, Adam for everything else, one learning-rate factor for both."""

    def __init__(
        self,
        model: nn.Module,
        *,
        matrix_lr: float,
        vector_lr: float,
        to_adam: Callable[[str], bool],
        decay: float = 0.0,
    ) -> None:
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        big = {
            n for n, p in named if p.ndim > 1 and min(p.shape[0], p[0].numel()) >= SMALLEST_MATRIX and not to_adam(n)
        }
        matrices, vectors = [p for n, p in named if n in big], [p for n, p in named if n not in big]
        fused = bool(vectors) and vectors[0].is_cuda
        adam = torch.optim.AdamW(vectors, lr=vector_lr, betas=(0.9, 0.98), weight_decay=0.0, fused=fused)
        self.members: list[torch.optim.Optimizer] = [adam]
        if matrices:
            self.members.append(Muon(matrices, matrix_lr, decay))
        self._lr = [vector_lr, matrix_lr]
        self._parameters = [p for _, p in named]

    def step(self, factor: float, clip: float, *, guard: bool = False) -> None:
        """Clip, update with the given share of the learning rates and forget the gradients.

        `guard` leaves out an update whose gradient is not finite; it waits for the device.
        """
        norm = nn.utils.clip_grad_norm_(self._parameters, clip)
        if guard and not torch.isfinite(norm):
            for p in self._parameters:
                p.grad = None
            return
        for member, lr in zip(self.members, self._lr, strict=False):
            for group in member.param_groups:
                group["lr"] = lr * factor
            member.step()
            member.zero_grad(set_to_none=True)


class Average:
    """Exponential moving average of a model's parameters."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._live = [p for p in model.parameters() if p.requires_grad]
        self._mean = [p.detach().clone() for p in self._live]
        self._decay, self._count = decay, 0

    @torch.no_grad()
    def update(self) -> None:
        """Move towards the live weights; early averages forget faster."""
        self._count += 1
        weight = 1 - min(self._decay, (1 + self._count) / (10 + self._count))
        torch._foreach_lerp_(self._mean, [p.detach() for p in self._live], weight)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange live and averaged weights."""
        for p, mean in zip(self._live, self._mean, strict=True):
            kept = p.detach().clone()
            p.copy_(mean)
            mean.copy_(kept)


@torch.no_grad()
def round_to_bfloat16(model: nn.Module) -> None:
    """Round what a file stores of the model to what it will hold, keeping the dtype in memory."""
    for t in model.state_dict().values():
        if t.is_floating_point():
            t.copy_(t.to(torch.bfloat16).to(t.dtype))


class Log:
    """JSON lines, flushed as they are written."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")

    def write(self, **values: float | int | str) -> None:
        """Append one line."""
        line = {k: round(v, 6) if isinstance(v, float) else v for k, v in values.items()}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        print(json.dumps(line), flush=True)


def save_state(folder: Path, name: str, tensors: dict[str, Tensor]) -> list[Path]:
    """Write tensors in float16 as name.0.safetensors, name.1 ...: parts below PART_BYTES; returns the paths.

    Moments of the optimiser are not kept: the warm-up of the next run rebuilds them.
    """
    parts: list[dict[str, Tensor]] = [{}]
    size = 0
    for key, value in tensors.items():
        value = (value.half() if value.is_floating_point() else value).detach().cpu().contiguous()
        if size and size + value.nbytes > PART_BYTES:
            parts.append({})
            size = 0
        parts[-1][key] = value
        size += value.nbytes
    paths = [folder / f"{name}.{i}.safetensors" for i in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        save_file(part, path.with_suffix(".part"))
    for path in paths:  # together and last: a killed run leaves parts of one moment
        path.with_suffix(".part").replace(path)
    return paths


def load_state(folder: Path, name: str) -> dict[str, Tensor]:
    """Read what `save_state` wrote; empty where there is nothing."""
    tensors: dict[str, Tensor] = {}
    for path in sorted(folder.glob(f"{name}.*.safetensors")):
        tensors |= load_file(path)
    return tensors
