"""Prompts to text features: tokens, the hidden states of Gemma 4, and their projection to the width of each stream.

Holds the text encoder only as long as it is needed: it is closed before the transformer is loaded. Knows no sampler
and no run folder, and not the connectors, which turn the features into contexts (ltx25.md section 3).
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from jaxtyping import Float, Int
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.functional import linear as apply_linear

from shotclock.errors import CheckpointError, RequestError
from shotclock.weights.checkpoint import Header, Kind, require
from shotclock.weights.identity import EMBEDDING
from shotclock.weights.load import Progress as Loaded
from shotclock.weights.load import load_module, read_blob, require_claimed
from shotclock.weights.stream import lend

SEQUENCE = 1024  # tokens of a padded prompt, ltx25.md section 3
BOS, PAD = 2, 0  # token ids where gemma_config leaves out defaults, ltx25.md section 3
RMS_EPS = 1e-6  # ltx25.md section 3, feature extractor
ROWS_PER_PRODUCT = 256  # rows of the projection widened to float32 at a time: 193 MB at 188,160 inputs
TOKENIZER = "tokenizer_json"  # ltx25.md section 3, file
PROJECTION = "text_embedding_projection."  # ltx25.md section 3, file
UNUSED = ("vision_model.", "multi_modal_projector.", "audio_projector.", "hf_asset__", TOKENIZER)  # same, not for text
LAYERS = "gemma.layers."  # of the encoder's modules: all but the embedding, the last norm and the projection
FILE_MARK = "@"  # a prompt that begins with it names a file; doubled, it is the character itself

DEFAULT_NEGATIVE_PROMPT = (
    "smeared or out-of-focus picture, compression blocks, film damage, flicker between frames, frozen or stuttering "
    "motion, melted faces, extra fingers, bent limbs, objects that appear or vanish, warped straight lines, burnt "
    "highlights, crushed shadows, captions, logos, watermarks, speech out of step with lips, hiss, hum, clipped or "
    "distorted sound, sudden silence"
)

Progress = Callable[[int, int], None]


def _unseen(_done: int, _total: int) -> None:
    """The progress nobody looks at."""


def read_prompt(value: str) -> str:
    """The prompt itself, or for ``@FILE`` the text of that UTF-8 file; ``@@...`` is a prompt that begins with ``@``.

    Raises :class:`RequestError` where the file cannot be read as text.
    """
    if not value.startswith(FILE_MARK):
        return value
    if value.startswith(FILE_MARK * 2):
        return value.removeprefix(FILE_MARK)
    path = Path(value.removeprefix(FILE_MARK))
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise RequestError(
            f"the prompt file {str(path)!r} cannot be read: {reason}",
            allowed="@ and the path of a UTF-8 text file, or the prompt itself",
            way_out="check the path; write @@ for a prompt that begins with @",
        ) from error


def read_prompts(prompt: str, negative_prompt: str | None) -> tuple[str, str]:
    """Both prompts as they are encoded: files read, ``None`` replaced by :data:`DEFAULT_NEGATIVE_PROMPT`.

    An empty negative prompt is legal. Raises :class:`RequestError` for an empty prompt or an unreadable file.
    """
    positive = read_prompt(prompt)
    if not positive.strip():
        raise RequestError(
            "the prompt is empty", allowed="at least one visible character", way_out="say what the clip shows"
        )
    return positive, DEFAULT_NEGATIVE_PROMPT if negative_prompt is None else read_prompt(negative_prompt)


def unused_tokens(header: Header, prompt: str) -> int:
    """Tokens at the end of a prompt that the model does not see; the tokenizer is read for long prompts alone."""
    if len(prompt.encode()) < SEQUENCE:  # a token is at least one byte
        return 0
    return PromptTokenizer.load(header).unused(prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTokenizer:
    """Prompt to token ids, as the model was trained: stripped, BOS first, no EOS, no chat template."""

    tokenizer: Tokenizer
    bos: int
    pad: int

    @classmethod
    def load(cls, header: Header) -> Self:
        """The tokenizer that a text encoder file carries. Raises :class:`CheckpointError` where it is unreadable."""
        blob = read_blob(header, TOKENIZER)
        try:
            tokenizer = Tokenizer.from_str(blob.decode("utf-8"))
        except Exception as error:  # the library raises plain Exception for whatever it cannot parse
            raise CheckpointError(
                f"the {TOKENIZER} of {header.path.name} is no tokenizer: {error}",
                allowed="the tokenizer.json the encoder was published with",
                way_out=f"fetch {Kind.TEXT_ENCODER.official_file}",
            ) from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        config = _text_config(header)
        return cls(tokenizer=tokenizer, bos=config.get("bos_token_id", BOS), pad=config.get("pad_token_id", PAD))

    def ids(self, prompt: str) -> list[int]:
        """At most 1,024 token ids; :meth:`unused` counts what is cut off."""
        return self._all(prompt)[:SEQUENCE]

    def unused(self, prompt: str) -> int:
        """Tokens at the end of the prompt that the model does not see."""
        return max(len(self._all(prompt)) - SEQUENCE, 0)

    def _all(self, prompt: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(prompt.strip(), add_special_tokens=False).ids
        return ids if ids[:1] == [self.bos] else [self.bos, *ids]

    def padded(self, prompts: Sequence[str]) -> tuple[Int[Tensor, "b s"], Int[Tensor, "b s"]]:
        """Ids padded on the left to 1,024, and the mask that is 1 for real tokens (golden ``text_tokens``)."""
        ids = torch.full((len(prompts), SEQUENCE), self.pad, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            real = self.ids(prompt)
            ids[row, -len(real) :] = torch.tensor(real)
            mask[row, -len(real) :] = 1
        return ids, mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """One prompt as the connectors take it in: its real tokens only, float32."""

    video: Float[Tensor, "1 n w"]
    audio: Float[Tensor, "1 n u"]

    @property
    def valid(self) -> int:
        """Number of real tokens."""
        return self.video.shape[1]


class FeatureProjection(nn.Module):
    """Feature extractor V2: every layer's vector to unit RMS, all layers of a token to one vector, one Linear a stream.

    Sizes come from the file, names are the official ones without ``text_embedding_projection.``.
    """

    def __init__(self, *, inputs: int, video_width: int, audio_width: int) -> None:
        super().__init__()
        self.video_aggregate_embed = nn.Linear(inputs, video_width)
        self.audio_aggregate_embed = nn.Linear(inputs, audio_width)

    @classmethod
    def on_meta(cls, header: Header) -> Self:
        """The projection of a text encoder file in its sizes, without values."""
        video = header.tensors[f"{PROJECTION}video_aggregate_embed.weight"].shape
        audio = header.tensors[f"{PROJECTION}audio_aggregate_embed.weight"].shape
        with torch.device("meta"):
            projection = cls(inputs=video[1], video_width=video[0], audio_width=audio[0])
        return projection.requires_grad_(False).eval()

    def forward(
        self, hidden: Float[Tensor, "b s c l"], mask: Int[Tensor, "b s"]
    ) -> tuple[Float[Tensor, "b s w"], Float[Tensor, "b s u"]]:
        """Video and audio features in float32; rows with mask 0 count as zeros, so they hold the bias."""
        channels = hidden.shape[2]
        states = hidden.float()
        states = states * torch.rsqrt(states.square().mean(dim=2, keepdim=True) + RMS_EPS)
        flat = states.flatten(2) * mask[..., None]  # index = channel * layers + layer
        return (
            _scaled_linear(flat, self.video_aggregate_embed, channels),
            _scaled_linear(flat, self.audio_aggregate_embed, channels),
        )


def _scaled_linear(x: Float[Tensor, "b s k"], linear: nn.Linear, channels: int) -> Float[Tensor, "b s w"]:
    """``linear(x * sqrt(w / channels))`` summed in float32, widening a part of the weight at a time."""
    scale = math.sqrt(linear.out_features / channels)
    parts = [apply_linear(x, rows.float()) for rows in linear.weight.split(ROWS_PER_PRODUCT)]
    return torch.cat(parts, dim=-1) * scale + linear.bias.float()


class TextEncoder:
    """Gemma 4 with its tokenizer and projection, for as long as it is open.

    A context manager: the weights are let go at its end, for the transformer needs the memory (users.md row 35).
    """

    def __init__(self, *, tokenizer: PromptTokenizer, gemma: Any, projection: FeatureProjection) -> None:
        self.tokenizer = tokenizer
        self._modules: tuple[Any, FeatureProjection] | None = (gemma, projection)

    @classmethod
    def load(
        cls,
        header: Header,
        *,
        device: torch.device,
        dtype: torch.dtype,
        by_layer: bool = False,
        progress: Loaded | None = None,
    ) -> Self:
        """Read a text encoder file strictly, each weight once, straight to ``device``.

        ``by_layer`` leaves the layers in the mapped file: each comes to the device while it computes, and the states
        are the same to the last bit. ``progress`` is told bytes of a long read.

        Raises :class:`CheckpointError` before any weight is read where the file is not a text encoder of LTX-2.5.
        """
        require(header, Kind.TEXT_ENCODER)
        tokenizer = PromptTokenizer.load(header)
        gemma, projection = _gemma_on_meta(_text_config(header)), FeatureProjection.on_meta(header)
        # One call for both, so that both are checked before the first weight is read.
        modules = nn.ModuleDict({"gemma": gemma, "projection": projection})
        names = _names(header)
        apart = [key for key, name in names.items() if by_layer and name.startswith(LAYERS)]
        load_module(modules, header, names, device=device, dtype=dtype, in_file=apart, progress=progress)
        if by_layer:
            lend(gemma.layers, device, dtype)
        _fill_derived(gemma, device)
        return cls(tokenizer=tokenizer, gemma=gemma, projection=projection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the weights go and give cached device memory back; a second call does nothing."""
        self._modules = None
        gc.collect()  # modules hold reference cycles
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    @property
    def projection(self) -> FeatureProjection:
        """The feature extractor."""
        return self._open[1]

    @property
    def _open(self) -> tuple[Any, FeatureProjection]:
        assert self._modules is not None, "the text encoder is closed"
        return self._modules

    def hidden_states(self, ids: Sequence[int], progress: Progress = _unseen) -> Float[Tensor, "1 n c l"]:
        """States of one prompt: scaled embedding, each layer but the last, and the last after the final norm.

        ``progress(done, layers)`` is called after each layer. Golden ``text_hidden``.
        """
        gemma, _ = self._open
        device = gemma.embed_tokens.weight.device
        # Without padding, but where padding on the left would put the tokens: the angles are float32 products, and at
        # positions near 1,024 their rounding moves the states by 1e-4.
        positions = torch.arange(SEQUENCE - len(ids), SEQUENCE, device=device)[None]
        with _recorded_states(gemma, progress) as states:
            gemma(input_ids=torch.tensor([ids], device=device), position_ids=positions, use_cache=False)
        return torch.stack(states, dim=-1)

    def encode(self, prompts: Sequence[str], progress: Progress = _unseen) -> list[Features]:
        """Features of each prompt, one prompt at a time.

        ``progress(done, total)`` is called after each layer and each projection of each prompt (users.md row 11).
        """
        gemma, projection = self._open
        steps = len(gemma.layers) + 1
        total = steps * len(prompts)
        features: list[Features] = []
        for before, prompt in zip(range(0, total, steps), prompts, strict=True):
            hidden = self.hidden_states(self.tokenizer.ids(prompt), _shifted(progress, before, total))
            video, audio = projection(hidden, torch.ones(hidden.shape[:2], dtype=torch.int64, device=hidden.device))
            features.append(Features(video=video, audio=audio))
            progress(before + steps, total)
        return features


def _shifted(progress: Progress, before: int, total: int) -> Progress:
    return lambda done, _part: progress(before + done, total)


@contextmanager
def _recorded_states(gemma: Any, progress: Progress) -> Iterator[list[Tensor]]:
    """Collect the outputs of embedding, layers and final norm while open; own hooks hold for every library version."""
    states: list[Tensor] = []

    def keep(_module: nn.Module, _arguments: object, output: Any) -> None:
        states.append(output[0] if isinstance(output, tuple) else output)

    def tick(done: int) -> Callable[..., None]:
        return lambda *_: progress(done, len(gemma.layers))

    recorded = [gemma.embed_tokens, *gemma.layers[:-1], gemma.norm]
    handles = [module.register_forward_hook(keep) for module in recorded]
    handles += [layer.register_forward_hook(tick(done)) for done, layer in enumerate(gemma.layers, start=1)]
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()


def _text_config(header: Header) -> Mapping[str, Any]:
    config: Mapping[str, Any] = header.metadata["gemma_config"]["text_config"]
    return config


def _names(header: Header) -> dict[str, str]:
    """Names in the file to names in the modules; refuses a tensor that has no place."""
    prefix = next(key.removesuffix("embed_tokens.weight") for key in sorted(header.tensors) if EMBEDDING.fullmatch(key))
    homes = {prefix: "gemma.", PROJECTION: "projection."}
    names = {
        key: home + key.removeprefix(start)
        for key in header.tensors
        for start, home in homes.items()
        if key.startswith(start)
    }
    require_claimed(header, names, unused=UNUSED)
    return names


def _gemma_on_meta(config: Mapping[str, Any]) -> Any:
    from transformers import Gemma4UnifiedTextConfig, Gemma4UnifiedTextModel  # takes seconds, so only where it is used

    with torch.device("meta"):
        gemma = Gemma4UnifiedTextModel(Gemma4UnifiedTextConfig(**config))
    return gemma.requires_grad_(False).eval()


def _fill_derived(gemma: Any, device: torch.device) -> None:
    """Give the buffers that no file holds their values: rope frequencies in float32 and the scale of the embedding."""
    gemma.rotary_emb = type(gemma.rotary_emb)(gemma.config).to(device)
    gemma.embed_tokens.embed_scale = torch.tensor(gemma.config.hidden_size**0.5, device=device)
    left = [name for name, value in [*gemma.named_parameters(), *gemma.named_buffers()] if value.is_meta]
    assert not left, f"weights without a value: {left}"
