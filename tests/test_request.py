"""A request is strict, hashes what it means, and says which field is wrong."""

from __future__ import annotations

import json

import pytest

from shotclock.errors import RequestError
from shotclock.request import make_request, parse_fps, read_request

SCALES = {"cfg": 3.0, "stg": 1.0, "modality": 3.0, "rescale": 0.7, "stg_blocks": (2,), "skip_step": 0}
FIELDS = {
    "prompt": "a red circle",
    "negative_prompt": "",
    "width": 64,
    "height": 64,
    "frames": 9,
    "fps": "24",
    "seed": 1,
    "steps": 4,
    "video": SCALES,
    "audio": SCALES,
    "legs_per_pass": 4,
}


def test_a_request_survives_its_file() -> None:
    """Same document, same digest, sorted keys, a final newline."""
    request = make_request(**FIELDS)
    again = read_request(request.to_json())
    assert again == request and again.digest == request.digest
    assert request.to_json().endswith("}\n")
    assert list(json.loads(request.to_json())) == sorted(json.loads(request.to_json()))


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("prompt", "   ", "prompt"),
        ("seed", -1, "seed"),
        ("seed", 2**63, "seed"),
        ("steps", 1, "steps"),
        ("legs_per_pass", 0, "legs_per_pass"),
        ("legs_per_pass", 5, "legs_per_pass"),
        ("width", 65, "width 65"),
        ("frames", 10, "10 frames"),
        ("fps", "fast", "'fast'"),
        ("fps", "1/0", "'1/0'"),
        ("video", SCALES | {"cfg": float("nan")}, "video.cfg"),
        ("video", SCALES | {"stg_blocks": ()}, "without a block"),
        ("colour", "red", "colour"),
    ],
)
def test_a_bad_field_is_named(field: str, value: object, named: str) -> None:
    """Each with what was found."""
    with pytest.raises(RequestError) as refusal:
        make_request(**(FIELDS | {field: value}))
    assert named in refusal.value.found


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("seed", -1, "0 or more"),
        ("steps", 1001, "up to 1000"),
        ("prompt", "\udcff" * 10_000, "text that is UTF-8"),
        ("decoder", "jpeg", "'conv' or 'diffusion'"),
        ("video", SCALES | {"cfg": float("inf")}, "a finite number"),
    ],
)
def test_what_is_allowed_is_said_in_our_words(field: str, value: object, allowed: str) -> None:
    """And a long value is cut."""
    with pytest.raises(RequestError) as refusal:
        make_request(**(FIELDS | {field: value}))
    assert refusal.value.allowed == allowed and len(refusal.value.found) < 200


def test_any_change_changes_the_digest() -> None:
    """users.md row 4: a stale key is never taken for the same render."""
    digests = {make_request(**FIELDS).digest}
    for field, value in {"prompt": "b", "negative_prompt": "x", "seed": 2, "fps": "25", "steps": 5}.items():
        digests.add(make_request(**(FIELDS | {field: value})).digest)
    assert len(digests) == 6


def test_rates_are_exact() -> None:
    """NTSC is a fraction, not 23.976."""
    assert str(parse_fps("24000/1001")) == "24000/1001" and str(parse_fps("23.976")) == "2997/125"


@pytest.mark.parametrize("text", ["{}", "not json", '{"format": "shotclock/request/9"}'])
def test_a_foreign_file_is_refused(text: str) -> None:
    """With the way out."""
    with pytest.raises(RequestError, match=r"request\.json is not a request"):
        read_request(text)
