"""The checker of shapes and types that tests/conftest.py puts on the core: ints are floats, as type checkers hold."""

from __future__ import annotations

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
