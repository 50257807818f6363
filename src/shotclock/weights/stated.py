"""Reading values out of a checkpoint's config, where nothing is ever guessed.

Knows mappings and refusals only: no model, no tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from shotclock.errors import CheckpointError
from shotclock.weights.header import Header

P = ParamSpec("P")
R = TypeVar("R")
WAY_OUT = "use an official LTX-2.5 file, or one with the same building blocks"


class Stated(Mapping[str, Any]):
    """A config section whose missing keys are refused by name (users.md row 66: built from wrong defaults)."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values, self._where = values, where

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            raise refusal(f"the config has no {self._where}.{key}", "a config that states it")
        return self._values[key]

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str, default: Any = None) -> Any:
        """The value where it is stated, ``default`` where the tensors of the file decide it anyway."""
        return self._values.get(key, default)


def refusal(found: str, allowed: str) -> CheckpointError:
    """A :class:`CheckpointError` of this kind of file."""
    return CheckpointError(found, allowed=allowed, way_out=WAY_OUT)


def names_file(
    function: Callable[Concatenate[Header, P], R],
) -> Callable[Concatenate[Header, P], R]:
    """Refusals raised inside ``function`` begin with the name of the file."""

    @wraps(function)
    def named(header: Header, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(header, *args, **kwargs)
        except CheckpointError as error:
            raise CheckpointError(
                f"{header.path.name}: {error.found}", allowed=error.allowed, way_out=error.way_out
            ) from error

    return named


def section(header: Header, *path: str) -> Stated:
    """The config mapping at ``path``. Raises :class:`CheckpointError` where there is none."""
    node: Any = header.metadata.get("config")
    for depth, name in enumerate(path):
        if not isinstance(node, Mapping) or name not in node:
            raise refusal(f"the config has no {'.'.join(path[: depth + 1])}", f"a config with {'.'.join(path)}")
        node = node[name]
    if not isinstance(node, Mapping):
        raise refusal(f"config {'.'.join(path)} is {node!r}", "a mapping")
    return Stated(node, ".".join(path))


def require_equal(config: Mapping[str, Any], where: str, fixed: Mapping[str, tuple[Any, bool]]) -> None:
    """Refuse values other than the fixed ones; the flag says whether a key must be there at all."""
    for key, (value, stated) in fixed.items():
        found = config[key] if stated else config.get(key, value)
        if found != value and not (value == [] and not found):
            raise refusal(f"{where}.{key} is {found!r}", f"{value!r}")


def one_of(config: Mapping[str, Any], key: str, allowed: Sequence[str], default: str) -> str:
    """The stated value, which must be an allowed one."""
    found = config.get(key, default)
    if found not in allowed:
        raise refusal(f"{key} is {found!r}", ", ".join(allowed))
    return str(found)
