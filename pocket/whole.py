"""Everything that the transformer stage trains, as one module: Gemma, projection, connectors and transformer.

Weights come from and go to state files (pocket.loop) and, averaged, the two official files. Must not know clips.
"""

from pathlib import Path

import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file
from torch import Tensor, nn

from pocket import network
from pocket.export import PREFIX, TEXT_FILE, TRANSFORMER_FILE, write_text, write_transformer
from pocket.loop import load_state, save_state
from pocket.text import HIDDEN, LAYERS, PROJECTION, build_gemma, hidden_states
from shotclock.render.text import FeatureProjection

STATE, AVERAGE = "dit_state", "dit_average"  # names of the trained and of the averaged weights


class Whole(nn.Module):
    """Caption ids to contexts; `transformer` reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer, self.connectors = network.build()
        self.gemma = build_gemma()
        width, audio_width = network.HEADS * network.HEAD_DIM, network.HEADS * network.AUDIO_HEAD_DIM
        self.projection = FeatureProjection(inputs=HIDDEN * (LAYERS + 1), video_width=width, audio_width=audio_width)

    def tables(self, device: torch.device | str) -> network.Tables:
        """Constants of the geometry, in the dtype of the weights."""
        return network.Tables.of(self.transformer, self.connectors, device)

    def contexts(
        self,
        ids: Int[Tensor, "u s"],
        valid: Int[Tensor, " u"],
        tables: network.Tables,
    ) -> tuple[Float[Tensor, "u 1024 d"], Float[Tensor, "u 1024 e"]]:
        """Contexts of tokenised captions, padded on the right."""
        mask = (torch.arange(ids.shape[1], device=ids.device)[None] < valid[:, None]).long()
        features = self.projection(hidden_states(self.gemma, ids), mask)
        return network.contexts(self.connectors, features, valid, tables)

    @classmethod
    def load(cls, folder: Path) -> "Whole":
        """The averaged weights of a state folder."""
        return cls()._filled(folder, load_state(folder, AVERAGE))

    @classmethod
    def shipped(cls, folder: Path) -> "Whole":
        """The weights of the two official files of a folder, as rounded there."""
        whole = cls()
        stored = load_file(folder / TRANSFORMER_FILE) | load_file(folder / TEXT_FILE)
        prefixes = {"transformer": PREFIX, "connectors": PREFIX, "gemma": "model.", "projection": PROJECTION}
        names = {n: n.split(".", 1) for n in whole.state_dict()}
        stored = {n: stored.get(prefixes[part] + rest) for n, (part, rest) in names.items()}
        return whole._filled(folder, {n: t for n, t in stored.items() if t is not None})

    def _filled(self, folder: Path, tensors: dict[str, Tensor]) -> "Whole":
        missing = {n for n, _ in self.named_parameters()} - tensors.keys()
        assert not missing, f"{folder} gives no {sorted(missing)[:3]}"
        self.load_state_dict(tensors, strict=False)
        return self.eval().requires_grad_(False)


def save_weights(folder: Path, trained: dict[str, Tensor], averaged: dict[str, Tensor]) -> None:
    """Two files each, float16: a run that is killed later loses nothing before this."""
    save_state(folder, STATE, trained)
    save_state(folder, AVERAGE, averaged)


def write_official(folder: Path, whole: Whole) -> None:
    """The transformer and the text encoder file."""
    write_transformer(folder / TRANSFORMER_FILE, whole.transformer, whole.connectors)
    write_text(folder / TEXT_FILE, whole.gemma, whole.projection)
