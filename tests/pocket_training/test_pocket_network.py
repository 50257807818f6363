"""The batched forward used for training is shotclock's transformer, and the text path is shotclock's text encoder."""

import torch
from pocket import network
from pocket.text import Ids, build_tokenizer

from shotclock.guidance import Leg, Perturbation
from shotclock.model.adaln import Times
from shotclock.model.transformer import Stream, Transformer


def _randomised() -> Transformer:
    torch.manual_seed(0)
    model, _ = network.build()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.1)
    return model.eval()


def test_batched_forward_equals_the_transformer() -> None:
    """Plain, i2v-like, isolated and perturbed rows give the velocities of Transformer.forward."""
    model = _randomised()
    tables = network.Tables.of(model, "cpu")
    n, m, every = 160, 26, frozenset(range(network.BLOCKS))
    stg = frozenset({network.STG_BLOCK})
    perturbations = [
        Perturbation(),
        Perturbation(),
        Perturbation(audio_to_video=every, video_to_audio=every),
        Perturbation(video_self=stg, audio_self=stg),
    ]
    sigma, sigma_a = torch.tensor([0.9, 0.5, 0.7, 0.2]), torch.tensor([0.9, 0.1, 0.7, 0.2])
    clean = torch.zeros(4, n, dtype=torch.bool)
    clean[1, :40] = True
    batch = network.Batch(
        video=torch.randn(4, n, 128),
        audio=torch.randn(4, m, 128),
        video_sigma=sigma,
        audio_sigma=sigma_a,
        video_clean=clean,
        video_context=torch.randn(4, 8, 192),
        audio_context=torch.randn(4, 8, 96),
        cross=torch.tensor([1.0, 1.0, 0.0, 1.0]),
        attend_self=torch.tensor([1.0, 1.0, 1.0, 0.0]),
    )
    with torch.inference_mode():
        mine = network.forward(model, batch, tables)
        for i, perturbation in enumerate(perturbations):
            row = slice(i, i + 1)
            times = torch.where(clean[row], 0.0, sigma[row, None])
            video = Stream(
                tokens=batch.video[row],
                times=Times.of(times),
                sigma=sigma[row],
                rotary=tables.video,
                context=batch.video_context[row],
                marker=tables.marker,
            )
            audio = Stream(
                tokens=batch.audio[row],
                times=Times.of(sigma_a[row, None].expand(1, m)),
                sigma=sigma_a[row],
                rotary=tables.audio,
                context=batch.audio_context[row],
            )
            theirs = model(video, audio, [Leg(perturbation=perturbation)])
            for a, b in zip(mine, theirs, strict=True):
                assert (a[row] - b).abs().max() < 1e-4 * b.abs().max()


def test_batched_contexts_equal_the_connectors() -> None:
    """Features with padding on the right give the contexts of shotclock's connectors."""
    torch.manual_seed(1)
    _, connectors = network.build()
    for p in connectors.parameters():
        torch.nn.init.normal_(p, std=0.1)
    features, valid = (torch.randn(2, 9, 192), torch.randn(2, 9, 96)), torch.tensor([9, 4])
    padded = [torch.nn.functional.pad(f, (0, 0, 0, 1015)) for f in features]
    with torch.inference_mode():
        mine = network.contexts(connectors, features, valid)
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
