"""Real processes for tests that kill them: forked from one that has imported everything (tests/zygote.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ZYGOTE = Path(__file__).parents[1] / "zygote.py"


@dataclass(frozen=True, slots=True)
class Zygote:
    """Runs the command line in a forked process."""

    process: subprocess.Popen[str]
    home: Path

    def run(self, *argv: str, log: Path, die: dict[str, Any] | None = None, **environment: str) -> int:
        """Exit code of a command, negative for the signal that ended it; what it printed is added to ``log``."""
        assert self.process.stdin is not None and self.process.stdout is not None
        variables = {"SHOTCLOCK_HOME": str(self.home)} | environment
        order = {"argv": list(argv), "environment": variables, "log": str(log), "die": die}
        print(json.dumps(order), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        assert answer, "the zygote died"
        return int(json.loads(answer)["status"])


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """One for all tests of a session, with a home of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, str(ZYGOTE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    yield Zygote(process, tmp_path_factory.mktemp("zygote-home"))
    assert process.stdin is not None
    process.stdin.close()
    process.wait()
