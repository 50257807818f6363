"""All trained weights as one vector: float32 masters, the working copy a forward reads, gradients, average, optimiser.

An update is a few dozen kernels whatever the number of tensors, reads nothing back and holds its rate on the device, so
that a CUDA graph can contain it. Must not know what is trained, files or clocks.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pocket.loop import MOMENTUM, SMALLEST_MATRIX, orthogonal

ALIGNMENT = 64  # elements: every tensor begins at a multiple of 128 bytes, as fast matrix kernels want it
ADAM_BETAS, ADAM_EPS = (0.9, 0.98), 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matrices:
    """Matrices of one shape, side by side in the vector."""

    begin: int
    count: int
    rows: int
    columns: int

    def of(self, vector: Float[Tensor, " n"]) -> Float[Tensor, "k r c"]:
        """Their view of a vector."""
        end = self.begin + self.count * self.rows * self.columns
        return vector[self.begin : end].view(self.count, self.rows, self.columns)


class FlatWeights:
    """Takes over the parameters of a module: they become views of `working`, their gradients views of `grad`.

    Muon (pocket.loop) moves the matrices, Adam everything else and what `to_adam` names.
    """

    def __init__(
        self, module: nn.Module, *, dtype: torch.dtype, to_adam: Callable[[str], bool], average_decay: float
    ) -> None:
        named = {n: p for n, p in module.named_parameters() if p.requires_grad}
        device = next(iter(named.values())).device
        shapes: dict[tuple[int, int], list[str]] = {}
        for name, p in named.items():
            rows, columns = p.shape[0], p[0].numel()
            if p.ndim > 1 and min(rows, columns) >= SMALLEST_MATRIX and rows * columns % 8 == 0 and not to_adam(name):
                shapes.setdefault((rows, columns), []).append(name)
        self._places: dict[str, tuple[int, torch.Size]] = {}
        self._matrices: list[_Matrices] = []
        end = 0
        for (rows, columns), names in shapes.items():
            self._matrices.append(_Matrices(begin=end, count=len(names), rows=rows, columns=columns))
            for name in names:
                self._places[name] = (end, named[name].shape)
                end += rows * columns
            end = _aligned(end)
        self._vectors_from = end
        for name in (n for n in named if n not in self._places):
            self._places[name] = (end, named[name].shape)
            end = _aligned(end + named[name].numel())
        self.master = torch.zeros(end, device=device)
        self.working = torch.zeros(end, device=device, dtype=dtype)
        self.grad = torch.zeros_like(self.working)
        self.average = torch.zeros_like(self.master)
        self.rate = torch.zeros((), device=device)
        self._momentum = torch.zeros_like(self.master[: self._vectors_from])
        self._square = torch.zeros_like(self.master[self._vectors_from :])
        self._mean = torch.zeros_like(self._square)
        self._count = torch.zeros((), device=device)
        self._decay = average_decay
        self.load({n: p.detach() for n, p in named.items()})
        self._adopt(module)

    def _view(self, vector: Tensor, name: str) -> Tensor:
        begin, shape = self._places[name]
        return vector[begin : begin + shape.numel()].view(shape)

    def _adopt(self, module: nn.Module) -> None:
        """Replace the module's parameters by views."""
        for name in self._places:
            path, _, leaf = name.rpartition(".")
            parameter = nn.Parameter(self._view(self.working, name))
            parameter.grad = self._view(self.grad, name)
            module.get_submodule(path).register_parameter(leaf, parameter)

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor], average: dict[str, Tensor] | None = None) -> None:
        """Set every weight by name, and the average to `average` or to the same; names must be complete."""
        for vector, values in ((self.master, tensors), (self.average, average or tensors)):
            missing = self._places.keys() - values.keys()
            assert not missing, f"no value for {sorted(missing)[:3]}"
            for name in self._places:
                self._view(vector, name).copy_(values[name])
        self.working.copy_(self.master)

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of `master` or `average` under the names of the parameters."""
        return {name: self._view(vector, name) for name in self._places}

    @torch.no_grad()
    def use_average(self) -> None:
        """Let the module compute with the averaged weights; the next step takes the trained ones again."""
        self.working.copy_(self.average)

    @torch.no_grad()
    def step(self, *, matrix_lr: float, vector_lr: float, clip: float) -> None:
        """One update with `rate` times the learning rates; gradients that are not finite count as zero."""
        grad = self.grad.float().nan_to_num(0.0, 0.0, 0.0)
        self.grad.zero_()
        grad *= (clip / (grad.norm() + 1e-6)).clamp(max=1.0)
        self._count += 1
        split = self._vectors_from
        self._muon(grad[:split], self.rate * matrix_lr)
        self._adam(grad[split:], self.rate * vector_lr)
        self.working.copy_(self.master)
        weight = 1 - torch.minimum((1 + self._count) / (10 + self._count), torch.full_like(self._count, self._decay))
        self.average.lerp_(self.master, weight)

    def _muon(self, grad: Float[Tensor, " n"], lr: Tensor) -> None:
        self._momentum.lerp_(grad, 1 - MOMENTUM)
        update = grad.lerp(self._momentum, MOMENTUM)
        for group in self._matrices:
            scale = 0.2 * max(group.rows, group.columns) ** 0.5  # update RMS as of Adam (Moonlight, 2025)
            group.of(self.master).sub_(lr * scale * orthogonal(group.of(update)))

    def _adam(self, grad: Float[Tensor, " m"], lr: Tensor) -> None:
        first, second = ADAM_BETAS
        self._mean.lerp_(grad, 1 - first)
        self._square.lerp_(grad.square(), 1 - second)
        mean, square = self._mean / (1 - first**self._count), self._square / (1 - second**self._count)
        self.master[self._vectors_from :].sub_(lr * mean / (square.sqrt() + ADAM_EPS))


def _aligned(end: int) -> int:
    return -(-end // ALIGNMENT) * ALIGNMENT
