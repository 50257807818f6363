"""Renders the prompts of the README with the command of the README and lays five frames of each side by side.

Run as `python -m pocket.strip docs/pocket.png`. Every row is one `shotclock render PROMPT --run DIR`, nothing chosen.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import av
from PIL import Image

PROMPTS = (
    "a red circle moves right, low tone",
    "a blue square bounces, high tone",
    "a yellow triangle grows, middle tone",
    "a green diamond blinks, low tone",
)
EVERY = 6  # frames
GAP_PX = 4


def frames(prompt: str, folder: Path) -> list[Image.Image]:
    """Every sixth frame of the clip that the command makes."""
    command = [sys.executable, "-m", "shotclock", "render", prompt, "--run", str(folder), "--quiet"]
    subprocess.run(command, check=False)
    with av.open(folder / "clip.mp4") as clip:
        return [frame.to_image() for frame in clip.decode(video=0)][::EVERY]


def main() -> None:
    """Command line."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("out", type=Path)
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rows = [frames(prompt, Path(scratch) / str(i)) for i, prompt in enumerate(PROMPTS)]
    width, height = rows[0][0].size
    size = len(rows[0]) * (width + GAP_PX) - GAP_PX, len(rows) * (height + GAP_PX) - GAP_PX
    sheet = Image.new("RGB", size, "white")
    for y, row in enumerate(rows):
        for x, frame in enumerate(row):
            sheet.paste(frame, (x * (width + GAP_PX), y * (height + GAP_PX)))
    sheet.resize((size[0] * 3 // 4, size[1] * 3 // 4)).save(args.out, optimize=True)


if __name__ == "__main__":
    main()
