"""A checkpoint: the four files of LTX-2.5, found in a folder by their headers, whatever they are called.

Reads headers only. Chooses the video VAE of the wanted decoder. Never guesses between two files that would both do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shotclock.errors import CheckpointError
from shotclock.weights.gemma import require_pair
from shotclock.weights.header import Header, TensorEntry, read_header
from shotclock.weights.identity import Kind, identify, recipe_for
from shotclock.weights.released import PINNED_25_CONFIG, Recipe
from shotclock.weights.require import require
from shotclock.weights.settings import transformer_settings

__all__ = [
    "PINNED_25_CONFIG",
    "CheckpointHeaders",
    "Checkpoints",
    "Header",
    "Kind",
    "Recipe",
    "TensorEntry",
    "find_checkpoints",
    "find_part",
    "identify",
    "read_header",
    "read_headers",
    "recipe_for",
    "require",
    "require_pair",
    "transformer_settings",
]

SUFFIX = ".safetensors"
NAMED = 6  # files an error names at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """The four files that a render reads; no text encoder where contexts are given instead."""

    transformer: Path
    text_encoder: Path | None
    video_vae: Path
    audio_vae: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointHeaders:
    """Headers of the four files, all checked, and checked to belong together; see :class:`Checkpoints`."""

    transformer: Header
    text_encoder: Header | None
    video_vae: Header
    audio_vae: Header


PARTS = {  # field of Checkpoints -> kind of file; the video VAE where no other decoder is asked for
    "transformer": Kind.TRANSFORMER,
    "text_encoder": Kind.TEXT_ENCODER,
    "video_vae": Kind.VIDEO_VAE_CONV,
    "audio_vae": Kind.AUDIO_VAE,
}
OTHER_DECODER = {
    Kind.VIDEO_VAE_CONV: (Kind.VIDEO_VAE_DIFFUSION, "diffusion"),
    Kind.VIDEO_VAE_DIFFUSION: (Kind.VIDEO_VAE_CONV, "conv"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A file found on the way: its header, or the reason why it has none."""

    path: Path
    header: Header | None
    error: CheckpointError | None


def find_checkpoints(
    models: Path,
    *,
    transformer: Path | None = None,
    text_encoder: Path | None = None,
    video_vae: Path | None = None,
    audio_vae: Path | None = None,
    text_encoder_wanted: bool = True,
    pinned_config: bool = False,
    video_kind: Kind = Kind.VIDEO_VAE_CONV,
) -> Checkpoints:
    """The four files in and below ``models``; a file that is named is taken and not looked for.

    Each is checked with :func:`~shotclock.weights.require.require`. A folder may hold other files as well, such as the
    video VAE of the other decoder, and no text encoder where none is wanted. Raises :class:`CheckpointError` where a
    part is missing, cannot be loaded, or is there more than once.
    """
    named = {"transformer": transformer, "text_encoder": text_encoder, "video_vae": video_vae, "audio_vae": audio_vae}
    kinds = kinds_of(video_kind)
    wanted = {part: kind for part, kind in kinds.items() if part != "text_encoder" or text_encoder_wanted}
    candidates = [] if all(named[part] for part in wanted) else list(_candidates(models))
    paths: dict[str, Path] = {}
    for part, kind in wanted.items():
        path = named[part]
        if path is None:
            paths[part] = _choose(models, candidates, kind, pinned_config=pinned_config)
        else:
            require(read_header(path), kind, pinned_config=pinned_config)
            paths[part] = path
    return Checkpoints(
        transformer=paths["transformer"],
        text_encoder=paths.get("text_encoder"),
        video_vae=paths["video_vae"],
        audio_vae=paths["audio_vae"],
    )


def kinds_of(video_kind: Kind) -> dict[str, Kind]:
    """:data:`PARTS` with the video VAE of the wanted decoder."""
    return PARTS | {"video_vae": video_kind}


def find_part(models: Path, kind: Kind, named: Path | None, *, option: str) -> Header:
    """Header of the one file of ``kind`` that a recipe needs beside the four: ``named``, or the only one there is.

    Raises :class:`CheckpointError` where there is none or a choice; ``option`` is how a user names one.
    """
    if named is not None:
        header = read_header(named)
        require(header, kind)
        return header
    found = [one.header for one in _candidates(models) if one.header is not None and identify(one.header) is kind]
    if len(found) == 1:
        require(found[0], kind)
        return found[0]
    listed = ", ".join(str(header.path.relative_to(models)) for header in found[:NAMED]) or "none"
    raise CheckpointError(
        f"the recipe needs {kind.words}; below {models} there are {len(found)}: {listed}",
        allowed=f"one such file, as {kind.official_file}",
        way_out=f"name it with {option}",
    )


def read_headers(
    checkpoints: Checkpoints, *, pinned_config: bool = False, video_kind: Kind = Kind.VIDEO_VAE_CONV
) -> CheckpointHeaders:
    """Read and check the headers, and that the text encoder is the one of the transformer; no weight is read."""
    kinds = kinds_of(video_kind)

    def checked(path: Path, part: str) -> Header:
        header = read_header(path)
        require(header, kinds[part], pinned_config=pinned_config)
        return header

    text_encoder = checkpoints.text_encoder
    headers = CheckpointHeaders(
        transformer=checked(checkpoints.transformer, "transformer"),
        text_encoder=None if text_encoder is None else checked(text_encoder, "text_encoder"),
        video_vae=checked(checkpoints.video_vae, "video_vae"),
        audio_vae=checked(checkpoints.audio_vae, "audio_vae"),
    )
    if headers.text_encoder is not None:
        require_pair(headers.transformer, headers.text_encoder, pinned_config=pinned_config)
    return headers


def _candidates(models: Path) -> Iterator[_Candidate]:
    if not models.is_dir():
        raise CheckpointError(
            f"{models} is {'a file' if models.exists() else 'not there'}",
            allowed="a folder that holds the four files of LTX-2.5",
            way_out="name the folder, or the files one by one",
        )
    seen: set[Path] = set()
    for path in sorted(models.rglob(f"*{SUFFIX}")):
        target = path.resolve()
        if target in seen or path.name.startswith(".") or path.is_dir():  # a dot: a file still being written
            continue
        seen.add(target)
        try:
            yield _Candidate(path=path, header=read_header(path), error=None)
        except CheckpointError as error:
            yield _Candidate(path=path, header=None, error=error)


def _choose(models: Path, candidates: Sequence[_Candidate], kind: Kind, *, pinned_config: bool) -> Path:
    fitting: list[Path] = []
    refused: list[CheckpointError] = []
    for candidate in candidates:
        if candidate.header is None or identify(candidate.header) is not kind:
            continue
        try:
            require(candidate.header, kind, pinned_config=pinned_config)
            fitting.append(candidate.path)
        except CheckpointError as error:
            refused.append(error)
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise _several(models, fitting, kind)
    if len(refused) == 1:
        raise refused[0]
    raise _none(models, candidates, refused, kind)


def _several(models: Path, fitting: Sequence[Path], kind: Kind) -> CheckpointError:
    names = ", ".join(str(path.relative_to(models)) for path in fitting[:NAMED])
    alike = " (dev and distilled cannot be told apart by their headers)" if kind is Kind.TRANSFORMER else ""
    return CheckpointError(
        f"{models} holds {len(fitting)} files that are {kind.words}: {names}{alike}",
        allowed="one file to choose from",
        way_out="leave one of them in that folder, or name the file itself",
    )


def _none(
    models: Path, candidates: Sequence[_Candidate], refused: Sequence[CheckpointError], kind: Kind
) -> CheckpointError:
    broken = [candidate.error for candidate in candidates if candidate.error is not None]
    reasons = "; ".join(error.found for error in [*refused, *broken][:NAMED])
    read = [str(item.path.relative_to(models)) for item in candidates if item.header is not None]
    others = ", ".join(read[:NAMED]) + (f" and {len(read) - NAMED} more" if len(read) > NAMED else "")
    seen = reasons or (f"{SUFFIX} files there: {others}" if others else f"no {SUFFIX} file is there")
    return CheckpointError(
        f"no file below {models} is {kind.words} that can be loaded; {seen}",
        allowed=f"one such file, as {kind.official_file}",
        way_out="put it there, or name the file itself" + _other_decoder(candidates, kind),
    )


def _other_decoder(candidates: Sequence[_Candidate], kind: Kind) -> str:
    """The option that takes the video VAE that is there, where the one that is wanted is not."""
    other = OTHER_DECODER.get(kind)
    there = {identify(one.header) for one in candidates if one.header is not None}
    return f", or render with --decoder {other[1]}" if other is not None and other[0] in there else ""
