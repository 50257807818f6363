"""A rank without a model: takes its seat and does what it is told; see test_ranks.py.

Orders: ``code N`` ends, ``die`` kills itself, ``wait`` waits for ever, ``say PLACE-NUMBER SECONDS|none``, ``part``,
``touch FILE``, ``see FILE`` waits until it is there, ``tell FILE`` writes the seat's numbers,
``outlive FILE`` waits until whoever told it is gone and reaped, ``obey N`` ends with N at SIGTERM,
``hold FIFO`` writes a byte and keeps it open.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from shotclock.render.ranks import Seat


def main(seat: Seat, orders: list[str]) -> int:
    """Follow the orders, one after the other."""
    seat.end_with_starter()
    for order in orders:
        match order.split():
            case ["code", code]:
                return int(code)
            case ["die"]:
                os.kill(os.getpid(), signal.SIGKILL)
            case ["wait"]:
                while True:
                    signal.pause()
            case ["say", place, within]:
                number = int(place.rpartition("-")[2])
                seat.say(place, number=number, within_s=None if within == "none" else float(within))
            case ["part"]:
                seat.part()
            case ["touch", path]:
                Path(path).touch()
            case ["see", path]:
                while not Path(path).exists():
                    os.sched_yield()
            case ["tell", path]:
                aside = Path(f"{path}.new")
                aside.write_text(f"{seat.rank} of {seat.ranks}, pid {os.getpid()}")
                aside.rename(path)
            case ["outlive", path]:
                while Path("/proc", Path(path).read_text().rsplit(" ", 1)[1]).exists():
                    os.sched_yield()
            case ["obey", code]:
                signal.signal(signal.SIGTERM, lambda *_, code=code: os._exit(int(code)))
            case ["hold", fifo]:
                os.write(os.open(fifo, os.O_WRONLY), b"!")
            case _:
                raise ValueError(order)
    return 0


if __name__ == "__main__":
    sys.exit(main(Seat.parse(sys.argv[1]), sys.argv[2:]))
