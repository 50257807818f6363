"""The batched forward used for training is shotclock's transformer, and the text path is shotclock's text encoder."""

import pytest
import torch
from pocket import network
from pocket.text import Ids, build_tokenizer

from shotclock.guidance import Leg, Perturbation
from shotclock.model.adaln import Times
from shotclock.model.transformer import Stream, Transformer

ROWS_OF_ALL_KINDS = 6


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(0)
    model, _ = network.build()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.1)
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def tables(model: Transformer) -> network.Tables:
    return network.Tables.of(model, network.build()[1], "cpu")


def _batch() -> network.Batch:
    """Three groups of two rows: clean first frame, clean sound, isolated and perturbed rows among them."""
    torch.manual_seed(7)
    n, m = network.GEOMETRY.video_tokens, network.GEOMETRY.audio_tokens
    clean = torch.zeros(ROWS_OF_ALL_KINDS, n, dtype=torch.bool)
    clean[1, :40] = True
    return network.Batch(
        video=torch.randn(ROWS_OF_ALL_KINDS, n, 128),
        audio=torch.randn(ROWS_OF_ALL_KINDS, m, 128),
        video_sigma=torch.tensor([0.9, 0.9, 0.5, 0.5, 0.2, 0.2]),
        audio_sigma=torch.tensor([0.9, 0.9, 0.1, 0.1, 0.2, 0.2]),
        video_clean=clean,
        video_context=torch.randn(3, 8, 192),
        audio_context=torch.randn(3, 8, 96),
        cross=torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0, 0.0]),
        attend_self=torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0, 0.0]),
    )


def _leg(batch: network.Batch, i: int) -> Leg:
    every, stg = frozenset(range(network.BLOCKS)), frozenset({network.STG_BLOCK})
    crossless = every if batch.cross[i] == 0 else frozenset()
    selfless = stg if batch.attend_self is not None and batch.attend_self[i] == 0 else frozenset()
    return Leg(
        perturbation=Perturbation(
            video_self=selfless, audio_self=selfless, audio_to_video=crossless, video_to_audio=crossless
        )
    )


def test_batched_forward_equals_the_transformer(model: Transformer, tables: network.Tables) -> None:
    """Rows of a group that share a context, and every kind of perturbed row, give Transformer.forward's velocities."""
    batch = _batch()
    with torch.inference_mode():
        mine = network.forward(model, batch, tables)
        for i in range(ROWS_OF_ALL_KINDS):
            row, group = slice(i, i + 1), slice(i // 2, i // 2 + 1)
            times = torch.where(batch.video_clean[row], 0.0, batch.video_sigma[row, None])
            video = Stream(
                tokens=batch.video[row],
                times=Times.of(times),
                sigma=batch.video_sigma[row],
                rotary=tables.video,
                context=batch.video_context[group],
                marker=tables.marker,
            )
            audio = Stream(
                tokens=batch.audio[row],
                times=Times.of(batch.audio_sigma[row, None].expand(1, network.GEOMETRY.audio_tokens)),
                sigma=batch.audio_sigma[row],
                rotary=tables.audio,
                context=batch.audio_context[group],
            )
            theirs = model(video, audio, [_leg(batch, i)])
            for a, b in zip(mine, theirs, strict=True):
                assert (a[row] - b).abs().max() < 1e-4 * b.abs().max()


def test_batched_contexts_equal_the_connectors() -> None:
    """Features with padding on the right give the contexts of shotclock's connectors."""
    torch.manual_seed(1)
    model, connectors = network.build()
    for p in connectors.parameters():
        torch.nn.init.normal_(p, std=0.1)
    features, valid = (torch.randn(2, 9, 192), torch.randn(2, 9, 96)), torch.tensor([9, 4])
    padded = [torch.nn.functional.pad(f, (0, 0, 0, 1015)) for f in features]
    with torch.inference_mode():
        mine = network.contexts(connectors, features, valid, network.Tables.of(model, connectors, "cpu"))
        theirs = (
            connectors.video_embeddings_connector(padded[0], valid),
            connectors.audio_embeddings_connector(padded[1], valid),
        )
    for a, b in zip(mine, theirs, strict=True):
        assert (a - b).abs().max() < 1e-4


def test_fast_ids_equal_the_shipped_tokenizer() -> None:
    """Training sees the ids that a user's prompt gets, capitals and unknown words included."""
    tokenizer, ids = build_tokenizer(), Ids()
    for text in ("a red circle moves right, low tone", "the gray box, an unknownword", ""):
        assert ids.of(text)[1:] == tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode("A Red CIRCLE", add_special_tokens=False).ids == ids.of("a red circle")[1:]
