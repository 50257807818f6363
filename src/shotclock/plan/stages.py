"""Seconds of the stages around the forwards: from measured rates, and from guesses that are called so before any.

Arithmetic on rates and counts. Knows no file, device or clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shotclock.events import Phase
from shotclock.geometry import Geometry
from shotclock.plan.estimate import Estimate, around, exactly
from shotclock.plan.ledger import Basis, Row
from shotclock.plan.rate import COLD_FACTOR, FILES, Rates, estimate_phase, units_of

ENCODER_FLOPS_PER_BYTE = 1024  # of a bf16 text encoder: 2 operations a parameter and token, 1,024 tokens, 2 bytes
DECODE_SHARE = 0.3  # of the matrix rate that convolutions reach; a guess


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """Seconds before anything was measured: a fixed time and a time a unit, right within ``factor`` either way."""

    fixed_s: float
    unit_s: float
    factor: float


# Nothing here was measured on the device at hand; where a figure has a source, it is one other machine's.
GUESSES: Mapping[Phase, Guess] = {
    Phase.LOAD_TEXT: Guess(fixed_s=1.0, unit_s=1e-9, factor=5),  # 1 GB/s: reports span 0.05 to 5 (users.md row 21)
    Phase.ENCODE: Guess(fixed_s=0.5, unit_s=0.0, factor=5),
    Phase.CONNECT: Guess(fixed_s=1.0, unit_s=0.0, factor=5),
    Phase.CONDITION: Guess(fixed_s=2.0, unit_s=5e-7, factor=5),  # encoders loaded, half a second a megapixel
    Phase.REHEARSE: Guess(fixed_s=4.0, unit_s=0.0, factor=5),
    Phase.LOAD_TRANSFORMER: Guess(fixed_s=1.0, unit_s=1e-9, factor=5),
    Phase.PREPARE: Guess(fixed_s=0.2, unit_s=0.0, factor=5),
    Phase.SNAPSHOT: Guess(fixed_s=0.02, unit_s=2e-6, factor=4),  # 12 to 28 ms at 1,344 to 9,216 tokens (lease.md)
    Phase.UPSCALE: Guess(fixed_s=2.0, unit_s=0.0, factor=5),
    Phase.SAVE_LATENTS: Guess(fixed_s=0.1, unit_s=1e-5, factor=5),
    Phase.LOAD_DECODERS: Guess(fixed_s=1.0, unit_s=1e-9, factor=5),
    Phase.DECODE_AUDIO: Guess(fixed_s=1.0, unit_s=0.5, factor=5),
    Phase.DECODE_VIDEO: Guess(fixed_s=0.5, unit_s=4e-8, factor=4),  # the encoder's part: 25 million pixels a second
    Phase.VERIFY: Guess(fixed_s=0.5, unit_s=4e-8, factor=3),  # 0.8 s and 2.1 s for 25 and 121 frames of 768x448
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """What is known of the stages of one model on one device.

    ``cached_shares`` says by file how much of it is in the page cache; a file that is missing is not known.
    """

    rates: Rates
    file_bytes: Mapping[str, int]
    cached_shares: Mapping[str, float]
    matrix_flops_per_s: float | None

    def row(
        self, name: str, phase: Phase, geometry: Geometry, *, flops: float = 0.0, count: int = 1, media: float = 0.0
    ) -> Row:
        """The phase ``count`` times; ``flops`` are what a guess adds at the matrix rate for convolutions.

        ``media`` are units of pictures and sound that are given.
        """
        units = units_of(phase, geometry, self.file_bytes, media)
        measured = estimate_phase(self.rates.samples, phase, units, cached_share=self._cached(phase))
        if measured is not None:
            return Row(name=name, estimate=measured.times(count), basis=Basis.RATE)
        return Row(name=name, estimate=self._guess(phase, units, flops).times(count), basis=Basis.GUESS)

    def _guess(self, phase: Phase, units: float, flops: float) -> Estimate:
        guess = GUESSES[phase]
        computed_s = 0.0
        if self.matrix_flops_per_s:
            if phase is Phase.ENCODE:
                flops = units * ENCODER_FLOPS_PER_BYTE * self.file_bytes.get("text_encoder", 0)
            computed_s = flops / (self.matrix_flops_per_s * DECODE_SHARE)
        cached = self._cached(phase)
        read_s = guess.unit_s * units
        said = f"guess: {phase} was never measured here"
        if cached is not None:
            read_s *= 1 - cached + cached / COLD_FACTOR
            said += f", {cached:.0%} of its bytes are in the page cache"
        return around(guess.fixed_s + read_s + computed_s, guess.factor, said)

    def _cached(self, phase: Phase) -> float | None:
        """Share of the phase's files in the page cache."""
        files = [name for name in FILES.get(phase, ()) if name in self.cached_shares]
        total = sum(self.file_bytes.get(name, 0) for name in files)
        if not total:
            return None
        return sum(self.file_bytes.get(name, 0) * self.cached_shares[name] for name in files) / total


def nothing(name: str, why: str) -> Row:
    """A part that takes no time of its own."""
    return Row(name=name, estimate=exactly(0.0, why), basis=Basis.NONE)
