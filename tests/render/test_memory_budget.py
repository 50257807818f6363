"""A render under ``--memory``: blocks streamed from the file, text by layer, out of memory once; the same bits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_pipeline import shotclock
from test_recipe_runs import PLAIN, TERMS, Killed, _imports_are_not_searched, _undecoded, lines, same, times

from shotclock.errors import OutOfMemory, RequestError
from shotclock.model.transformer import Transformer
from shotclock.plan.memory import HOST_BYTES, RING_BYTES, Needs
from shotclock.plan.placement import Placement
from shotclock.record.derive import Context, derive
from shotclock.record.folder import read_folder
from shotclock.record.machine import Machine
from shotclock.render import crew, pipeline, sample
from shotclock.render.capacity import parse_bytes
from shotclock.render.identity import Identity
from shotclock.render.run import resume, start
from shotclock.render.snapshot import legs_in_force, read_snapshot, snapshots, tensors_of
from shotclock.rundir import RunDir
from shotclock.weights.shapes import transformer_shapes
from shotclock.weights.stream import StreamedBlock
from shotclock.weights.tiny import TRANSFORMER, _tensor
from shotclock.weights.write import write_safetensors

__all__ = ["_imports_are_not_searched", "_undecoded"]  # fixtures of all tests here: latents are compared

BLOCKS = 8
WIDE = {
    **TRANSFORMER,
    "num_layers": BLOCKS,
    "attention_head_dim": 64,
    "audio_attention_head_dim": 32,
    "cross_attention_dim": 256,
    "audio_cross_attention_dim": 128,
    "connector_attention_head_dim": 64,
    "audio_connector_attention_head_dim": 32,
}
PROCESS = RING_BYTES + HOST_BYTES  # of a render on a memory that is shared
CLIP: dict[str, Any] = {"size": "64x32", "frames": 9, "fps": "120", "steps": 2}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transformer that is larger than anything else of its render: eight blocks, four times the tiny widths."""
    generator = torch.Generator().manual_seed(1)
    shapes = transformer_shapes(WIDE)
    path = tmp_path_factory.mktemp("wide") / "wide-ltx-2.5-transformer-bf16.safetensors"
    stated = {"config": {"transformer": WIDE}, "shotclock": {"stg_blocks": [BLOCKS // 2]}}
    source = {"ltx_version": "2.5.0", "gemma_version": "gemma4-12b-ltx-v1"}
    metadata = {"model_version": "2.5.0", "gemma_source_checkpoint": json.dumps(source)}
    write_safetensors(
        path,
        {name: _tensor(name, shapes[name], generator) for name in sorted(shapes)},
        metadata | {name: json.dumps(value) for name, value in stated.items()},
    )
    texts = {
        "video": torch.randn(2, 1024, 256, generator=generator),
        "audio": torch.randn(2, 1024, 128, generator=generator),
    }
    save_file(texts, path.parent / "contexts.safetensors")
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def render(run: Path, home: Path, wide: Path, terms: Any = TERMS, **changes: Any) -> dict[str, Any]:
    """Its RunBegins line of the last attempt."""
    given = {"transformer": wide, "contexts": wide.parent / "contexts.safetensors"}
    start(replace(PLAIN, run=run, **(given | CLIP | changes)), terms, home=home, times=times(), console=None)
    return lines(run, "RunBegins")[-1]


@pytest.fixture(scope="module")
def whole(home: Path, wide: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same render with all blocks resident."""
    run = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "decode", lambda *_: None)
        assert render(run, home, wide)["placement"]["streamed"] == 0
    return run


def kept(run: Path) -> list[tuple[Identity, list[bytes]]]:
    """Fingerprint and bits of both snapshots."""
    found = [read_snapshot(path) for path in snapshots(RunDir(run))]
    return [(one.identity, [value.numpy().tobytes() for value in tensors_of(one.state).values()]) for one in found]


def fails_once(monkeypatch: pytest.MonkeyPatch, at: int, times: int = 1) -> None:
    """Passes ``at`` to ``at + times - 1`` of the process, from 1, run out of memory."""
    real, count = Transformer.forward, [0]

    def forward(self: Transformer, *arguments: Any, **options: Any) -> Any:
        count[0] += 1
        if at <= count[0] < at + times:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, *arguments, **options)

    monkeypatch.setattr(Transformer, "forward", forward)


def test_a_streamed_render_has_the_bits_and_the_fingerprint_of_a_resident_one(
    home: Path, wide: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three blocks within the cap, the others from the file; another law, the same snapshots, resumed either way."""
    real, streamed = crew.load_fused, []

    def load(*arguments: Any, **options: Any) -> Transformer:
        transformer = real(*arguments, **options)
        streamed.append(sum(isinstance(block, StreamedBlock) for block in transformer.transformer_blocks))
        return transformer

    monkeypatch.setattr(crew, "load_fused", load)
    begins = render(tmp_path / "run", home, wide, memory=f"{PROCESS + 45_000_000}")
    placed = begins["placement"]
    assert (placed["resident"], placed["streamed"], placed["source"]) == (3, 7, "file")
    assert placed["cap_bytes"] == PROCESS + 45_000_000 and streamed == [7]
    assert begins["law_key"]["streaming"] == "3 of 8 blocks resident, from file"
    assert lines(whole, "RunBegins")[0]["law_key"]["streaming"] == "none"
    assert same(tmp_path / "run", whole) and kept(tmp_path / "run") == kept(whole)
    assert f"--memory={PROCESS + 45_000_000}" in begins["command"]


def test_a_resume_keeps_the_cap_or_is_given_another(
    home: Path, wide: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while it streamed, gone on with all blocks resident: no seam."""
    real = sample.keep

    def keep(*arguments: Any) -> None:
        real(*arguments)
        raise Killed

    for name, memory, resident in (("a", None, 3), ("b", "20GB", BLOCKS)):
        run = tmp_path / name
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(sample, "keep", keep)
            render(run, home, wide, memory=f"{PROCESS + 45_000_000}")
        resume(run, TERMS, models=None, home=home, times=times(), console=None, memory=memory)
        assert lines(run, "RunBegins")[-1]["placement"]["resident"] == resident
        assert same(run, whole) and not lines(run, "Seam")


def test_out_of_memory_in_the_first_pass_tries_fewer_legs_once(
    home: Path, wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clip is the one of two legs a pass from its first step: no seam; log and record say it, a resume keeps it."""
    render(tmp_path / "two", home, wide, legs_per_pass=2)
    fails_once(monkeypatch, 1)
    run = tmp_path / "run"
    begins = render(run, home, wide)
    first, second = lines(run, "RunBegins")
    assert (first["legs_per_pass"], first["smaller"], second["legs_per_pass"]) == (4, None, 2)
    assert second == begins and second["attempt"] == 2
    assert lines(run, "RunFails")[0]["found"].startswith("out of memory in phase denoise")
    said = "tried once more with 2 legs a pass, not 4"
    assert said in second["smaller"] and any(said in line["text"] for line in lines(run, "Notice"))
    assert second["law_key"]["legs_per_pass"] == 2 and not lines(run, "Seam")
    assert same(run, tmp_path / "two") and lines(run, "PassEnds")[-1]["index"] == 4
    machine = Machine(facts={}, libraries={}, modules={}, operations={})
    facts = derive(read_folder(run), machine, Context(private=False))
    assert any(said in note for note in facts.notes)
    assert legs_in_force(RunDir(run)) == 2


@pytest.mark.parametrize("accept_seam", [False, True])
def test_out_of_memory_later_keeps_the_bits_unless_a_seam_is_accepted(
    home: Path, wide: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accept_seam: bool
) -> None:
    """Fewer blocks stay, from the last snapshot on; with --accept-seam fewer legs run together, which the log says."""
    fails_once(monkeypatch, 2)
    run = tmp_path / "run"
    begins = render(run, home, wide, replace(TERMS, accept_seam=accept_seam))
    assert begins["resumed_from"].startswith("snapshot-00001-0-")
    assert [line["legs"] for line in lines(run, "PassBegins")][:2] == [["cond", "uncond", "perturbed", "isolated"]] * 2
    if accept_seam:
        assert (begins["legs_per_pass"], begins["placement"]["resident"]) == (2, BLOCKS)
        assert lines(run, "Seam")[0]["differs"] == {"legs_per_pass": [4, 2]}
    else:
        assert (begins["legs_per_pass"], begins["placement"]["resident"]) == (4, 5)
        assert "5 of 8 blocks resident, not 8" in begins["smaller"]
        assert same(run, whole) and kept(run) == kept(whole) and not lines(run, "Seam")


def test_the_second_time_it_is_a_failure(
    home: Path, wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what was held, what is free and the way out; every finished pass is kept."""
    fails_once(monkeypatch, 2, times=2)
    with pytest.raises(OutOfMemory, match="5 of 8 blocks resident") as caught:
        render(tmp_path / "run", home, wide)
    assert "--memory SIZE" in caught.value.way_out and caught.value.exit_code == 1
    assert len(lines(tmp_path / "run", "RunBegins")) == 2 and kept(tmp_path / "run")


@pytest.mark.parametrize("text", ["layers", "cpu"])
def test_text_is_encoded_apart_to_the_same_contexts(
    home: Path, wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """As the plan says; the encoder of the tiny set, whose prompts nobody encoded before."""
    real = Needs.place

    def place(self: Needs, *arguments: Any) -> Placement:
        return real(self, *arguments).model_copy(update={"text": text})

    def stop(*_: Any) -> None:
        raise Killed

    found = []
    for name in ("whole", "apart"):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(sample, "load", stop)
            if name == "apart":
                patch.setattr(Needs, "place", place)
            fresh = tmp_path / name / "home"
            plain = {"transformer": None, "contexts": None}
            fresh.mkdir(parents=True)
            for folder in home.glob("tiny-*"):
                (fresh / folder.name).symlink_to(folder)
            render(tmp_path / name / "run", fresh, wide, **plain)
        found.append(load_file(tmp_path / name / "run" / "contexts.safetensors"))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_the_plan_says_its_choice(home: Path, wide: Path) -> None:
    """Cap, blocks, bytes a pass, need and free, price of the copies, the page cache; and what does not fit at all."""
    words = ["--transformer", str(wide), "--contexts", str(wide.parent / "contexts.safetensors"), "--size=64x32"]
    words += ["--legs-per-pass=4"]  # which number is fastest follows from measured rates
    words += ["--models=tiny", "--frames=9", "--fps=120", "--steps=2", "--device=cpu", "--no-verify"]
    done = shotclock("plan", "a red circle", *words, f"--memory={PROCESS + 45_000_000}", home=home)
    assert done.returncode == 0, done.stderr
    for said in (
        "weights: 3 of 8 blocks fit; 7 stream from the file, 0.0425 GB a pass, to the same bits",
        "streaming from host memory is pointless here: host and device have one memory",
        "memory: denoise 1.28 GiB of 1.29 GiB on the host",
        "copies",
        "page cache: 100% of transformer (warm)",
    ):
        assert said in done.stderr, done.stderr
    done = shotclock("plan", "a red circle", *words, "--memory=1.2GB", home=home)
    assert done.returncode == 3 and "in the smallest tiles needs" in done.stderr, done.stderr


def test_sizes_of_memory() -> None:
    """Decimal and binary units; nothing that is no size."""
    assert [parse_bytes(text) for text in ("20GB", "18.5 GiB", "900mb", "4096")] == [
        20 * 10**9, 18.5 * 2**30, 9 * 10**8, 4096,
    ]  # fmt: skip
    for text in ("", "0GB", "20 TB", "-1GB", "lots"):
        with pytest.raises(RequestError, match="memory"):
            parse_bytes(text)
