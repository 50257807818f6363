"""shotclock renders guided LTX-2.5 audio-video clips on a GPU that is held for a bounded time."""

__version__ = "0.1.0"
