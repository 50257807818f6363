"""Strict loading: what is refused, that values are those of the file, and that weights are not copied."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from weight_files import changed_copy, refusal, write_headed

from shotclock.weights.checkpoint import Checkpoints
from shotclock.weights.header import Header, read_header
from shotclock.weights.load import (
    load_module,
    load_tensors,
    mapped_tensors,
    published_dtype,
    read_blob,
    require_claimed,
    staged_tensors,
)
from shotclock.weights.staging import Ring

CPU = torch.device("cpu")
META = torch.device("meta")
RING = Ring(readers=2, buffers=2, chunk_bytes=1000)
DIT = "model.diffusion_model."
GOLDEN = sorted((Path(__file__).parents[1] / "goldens" / "ckpt").glob("*.safetensors"))


def all_names(header: Header) -> dict[str, str]:
    """Every tensor under its own name."""
    return {key: key for key in header.tensors}


class Small(nn.Module):
    """A module with a parameter of each published dtype and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3, device=META)
        self.scale_shift_table = nn.Parameter(torch.empty(2, 4, device=META))
        self.register_buffer("mean", torch.empty(4, device=META))


@pytest.fixture
def small(tmp_path: Path) -> Header:
    """A file for :class:`Small`."""
    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"{DIT}linear.weight": torch.randn(3, 4, generator=generator).bfloat16(),
        f"{DIT}linear.bias": torch.randn(3, generator=generator).bfloat16(),
        f"{DIT}scale_shift_table": torch.randn(2, 4, generator=generator),
        f"{DIT}mean": torch.randn(4, generator=generator).bfloat16(),
    }
    save_file(tensors, tmp_path / "small.safetensors")
    return read_header(tmp_path / "small.safetensors")


def small_names(header: Header) -> dict[str, str]:
    """The file's keys without their prefix."""
    return {key: key.removeprefix(DIT) for key in header.tensors}


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_values_are_those_of_the_file(path: Path) -> None:
    """Mapped and staged tensors equal what the safetensors library reads, bit for bit, in value, shape and dtype."""
    expected = load_file(path)
    header = read_header(path)
    names = all_names(header)
    for found in (
        load_tensors(header, names, device=CPU, dtype=None),
        staged_tensors(header, names, device=CPU, dtype=None, ring=RING, segment_bytes=5000),
    ):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert found[key].dtype == value.dtype
            assert torch.equal(found[key], value)


def test_a_subset_under_new_names(small: Header) -> None:
    """Only what is named is loaded, under the new names, in their order."""
    names = {f"{DIT}mean": "b", f"{DIT}linear.bias": "a"}
    expected = load_file(small.path)
    for found in (
        load_tensors(small, names, device=CPU, dtype=None),
        staged_tensors(small, names, device=CPU, dtype=None),
    ):
        assert list(found) == ["b", "a"]
        assert torch.equal(found["b"], expected[f"{DIT}mean"])


def test_a_cast_is_for_floats_only(golden: Checkpoints) -> None:
    """dtype float32 casts weights and leaves the tokenizer's bytes."""
    assert golden.text_encoder is not None
    header = read_header(golden.text_encoder)
    for found in (
        load_tensors(header, all_names(header), device=CPU, dtype=torch.float32),
        staged_tensors(header, all_names(header), device=CPU, dtype=torch.float32, segment_bytes=5000),
    ):
        assert {tensor.dtype for tensor in found.values()} == {torch.float32, torch.uint8}
        key = "model.norm.weight"
        assert torch.equal(found[key], load_file(golden.text_encoder)[key].float())


def test_mapped_tensors_share_one_private_mapping(tmp_path: Path) -> None:
    """On the CPU all tensors are views of the file: after every byte was read, no page is the process's own copy."""
    path = tmp_path / "weights.safetensors"
    save_file({f"w{number}": torch.ones(1024, 1024) for number in range(16)}, path)
    header = read_header(path)
    tensors = load_tensors(header, all_names(header), device=CPU, dtype=None)
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors.values()}) == 1
    assert sum(float(tensor.sum()) for tensor in tensors.values()) == 16 * 2**20
    entry = re.search(rf"^[0-9a-f-]+ (\S+) .*{path.name}\n(?:\S+: .*\n)*", Path("/proc/self/smaps").read_text(), re.M)
    assert entry is not None
    assert entry[1] == "rw-p"
    kilobytes = {name: int(size) for name, size in re.findall(r"^(\w+): +(\d+) kB$", entry[0], re.M)}
    assert kilobytes["Rss"] >= 64 * 1024
    assert kilobytes["Anonymous"] == 0
    tensors["w3"].add_(1)
    assert torch.equal(load_file(path)["w3"], torch.ones(1024, 1024))


def test_module_on_the_cpu_is_not_copied(small: Header) -> None:
    """Parameters of a loaded module are views of the mapping."""
    module = Small()
    load_module(module, small, small_names(small), device=CPU, dtype=None)
    assert module.linear.weight.untyped_storage().nbytes() == small.file_bytes


def test_staged_tensors_are_views_of_few_buffers(golden: Checkpoints) -> None:
    """Where offsets are multiples of 16 bytes, tensors share the flat buffer of their segment."""
    header = read_header(golden.transformer)
    found = staged_tensors(header, all_names(header), device=CPU, dtype=None)
    aligned = [key for key, entry in header.tensors.items() if entry.start % 16 == 0]
    assert len(aligned) > 300
    assert len({found[key].untyped_storage().data_ptr() for key in aligned}) == 1


def test_every_staged_tensor_is_aligned(tmp_path: Path) -> None:
    """A tensor at an odd offset gets storage of its own, so that kernels see 16-byte aligned data."""
    tensors = {"a": torch.ones(3, dtype=torch.uint8), "b": torch.arange(5, dtype=torch.uint8), "c": torch.ones(())}
    save_file(tensors, tmp_path / "f")
    header = read_header(tmp_path / "f")
    found = staged_tensors(header, all_names(header), device=CPU, dtype=None)
    assert all(tensor.data_ptr() % 16 == 0 for tensor in found.values())
    assert found["b"].tolist() == [0, 1, 2, 3, 4]


def test_unaligned_data_is_read_all_the_same(tmp_path: Path) -> None:
    """A header of odd length puts floats at odd addresses; both ways copy those and are right."""
    value = torch.tensor([1.5, -2.0])
    text = b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    text = text.ljust(len(text) + (len(text) + 1) % 2)
    assert len(text) % 2
    (tmp_path / "f").write_bytes(len(text).to_bytes(8, "little") + text + value.numpy().tobytes())
    header = read_header(tmp_path / "f")
    assert torch.equal(mapped_tensors(header, {"x": "x"}, dtype=None)["x"], value)
    assert torch.equal(staged_tensors(header, {"x": "x"}, device=CPU, dtype=None)["x"], value)


def test_empty_tensors(tmp_path: Path) -> None:
    """A tensor without values keeps its shape."""
    header = read_header(write_headed(tmp_path / "f", {"a": ("BF16", (0, 3))}))
    for found in (
        load_tensors(header, {"a": "a"}, device=CPU, dtype=torch.float32),
        staged_tensors(header, {"a": "a"}, device=CPU, dtype=torch.float32),
    ):
        assert found["a"].shape == (0, 3)
        assert found["a"].dtype == torch.float32


def test_weights_loaded_in_inference_mode_are_usable_outside(small: Header) -> None:
    """Loading inside inference mode gives ordinary tensors, and other threads may fill them."""
    with torch.inference_mode():
        module = Small()
        load_module(module, small, small_names(small), device=CPU, dtype=torch.float32)
        staged = staged_tensors(small, small_names(small), device=CPU, dtype=None)
    assert not module.linear.weight.is_inference()
    assert torch.equal(staged["mean"], load_file(small.path)[f"{DIT}mean"])


def test_module_gets_every_tensor(small: Header) -> None:
    """Parameters and buffers hold the file's values; nothing is left on the meta device."""
    module = Small()
    load_module(module, small, small_names(small), device=CPU, dtype=None)
    expected = load_file(small.path)
    assert module.state_dict().keys() == set(small_names(small).values())
    for name, value in module.state_dict().items():
        assert torch.equal(value, expected[DIT + name])


def test_module_keys_must_all_be_named(small: Header) -> None:
    """A parameter without a tensor is named."""
    names = small_names(small)
    del names[f"{DIT}mean"]
    refusal(
        lambda: load_module(Small(), small, names, device=CPU, dtype=None),
        found="nothing for mean",
        allowed="every parameter",
        way_out="official file",
    )


def test_no_tensor_without_a_place(small: Header) -> None:
    """A tensor for a parameter that the module lacks is named."""
    names = {key: name.replace("mean", "average") for key, name in small_names(small).items()}
    names |= {f"{DIT}linear.bias": "mean"}
    module = Small()
    module.linear.bias = None  # type: ignore[assignment]  # a module without this parameter
    refusal(
        lambda: load_module(module, small, names, device=CPU, dtype=None),
        found="tensors for average",
        allowed="no tensor but",
        way_out="official file",
    )


def test_one_tensor_for_each_parameter(small: Header) -> None:
    """Two tensors for one parameter are refused."""
    names = small_names(small) | {f"{DIT}mean": "linear.bias"}
    refusal(
        lambda: load_module(Small(), small, names, device=CPU, dtype=None),
        found="fill linear.bias more than once",
        allowed="one tensor",
        way_out="official file",
    )


def test_a_key_the_file_lacks(small: Header) -> None:
    """Keys that are not in the file are counted and the first are named."""
    names = {f"no.{number}": f"{number}" for number in range(5)}
    refusal(
        lambda: load_tensors(small, names, device=CPU, dtype=None),
        found="lacks no.0, no.1, no.2 and 2 more",
        allowed="every tensor",
        way_out="official file",
    )


def test_shapes_must_agree(small: Header, tmp_path: Path) -> None:
    """Both shapes are told."""
    path = changed_copy(small.path, tmp_path / "f", lambda d: d[f"{DIT}linear.weight"].update(shape=[4, 3]))
    refusal(
        lambda: load_module(Small(), read_header(path), small_names(small), device=CPU, dtype=None),
        found=f"{DIT}linear.weight [4, 3]",
        allowed=f"{DIT}linear.weight [3, 4]",
        way_out="version that its config",
    )


@pytest.mark.parametrize(
    ("name", "found", "allowed"),
    [("linear.weight", "F32", "BF16"), ("linear.bias", "F16", "BF16"), ("scale_shift_table", "BF16", "F32")],
)
def test_dtypes_must_be_the_published_ones(small: Header, tmp_path: Path, name: str, found: str, allowed: str) -> None:
    """BF16, or F32 for the tables: both dtypes are told."""
    path = changed_copy(small.path, tmp_path / "f", lambda d: d[DIT + name].update(dtype=found))
    refusal(
        lambda: load_module(Small(), read_header(path), small_names(small), device=CPU, dtype=torch.float32),
        found=f"{DIT}{name} in {found}",
        allowed=f"{DIT}{name} in {allowed}",
        way_out="official file",
    )


def test_tables_elsewhere_are_bf16() -> None:
    """Only the transformer's tables are F32; the diffusion decoder has a bf16 table of the same name."""
    assert published_dtype("model.diffusion_model.transformer_blocks.0.scale_shift_table_a2v_ca_video") == "F32"
    assert published_dtype("decoder.diff_blocks.0.scale_shift_table") == "BF16"


def test_dtypes_torch_has_no_use_for(tmp_path: Path) -> None:
    """A quantised tensor is refused by name before anything is read."""
    header = read_header(write_headed(tmp_path / "f", {"w": ("F8_E4M3", (4,))}))
    refusal(
        lambda: load_tensors(header, {"w": "w"}, device=CPU, dtype=None),
        found="w (F8_E4M3)",
        allowed="BF16",
        way_out="official file",
    )


def test_refused_before_any_weight_is_read(small: Header) -> None:
    """With the file gone, a wrong shape is still what is reported: checks need the header only."""
    small.path.unlink()
    module = Small()
    module.linear = nn.Linear(5, 3, device=META)
    refusal(
        lambda: load_module(module, small, small_names(small), device=CPU, dtype=None),
        found="linear.weight [3, 4]",
        allowed="[3, 5]",
        way_out="official",
    )


@pytest.mark.parametrize("size", [-1, 1])
def test_a_file_that_changed_since_its_header(small: Header, size: int) -> None:
    """A mapping of a file that shrank would crash the process; it is refused."""
    with small.path.open("rb+") as file:
        file.truncate(small.file_bytes + size)
    refusal(
        lambda: load_tensors(small, small_names(small), device=CPU, dtype=None),
        found="another size",
        allowed="stays as it is",
        way_out="still writing",
    )


def test_all_tensors_must_be_claimed(small: Header) -> None:
    """Tensors that no module takes are named; known unused ones may be excepted by prefix."""
    claimed = [key for key in small.tensors if "linear" not in key]
    refusal(
        lambda: require_claimed(small, claimed),
        found=f"{DIT}linear.bias, {DIT}linear.weight",
        allowed="tensor by tensor",
        way_out="finetune",
    )
    require_claimed(small, claimed, unused=(f"{DIT}linear.",))
    require_claimed(small, small.tensors)


def test_blobs_are_texts(golden: Checkpoints) -> None:
    """Tokenizer files come out as bytes."""
    assert golden.text_encoder is not None
    blob = read_blob(read_header(golden.text_encoder), "tokenizer_json")
    assert blob.startswith(b"{") and blob.rstrip().endswith(b"}")


def test_a_blob_that_ends_early(small: Header) -> None:
    """A file cut since its header was read is refused."""
    with small.path.open("rb+") as file:
        file.truncate(small.file_bytes - 30)
    last = max(small.tensors, key=lambda key: small.tensors[key].end)
    refusal(lambda: read_blob(small, last), found="ends inside", allowed="stays", way_out="still writing")


@pytest.mark.gpu
def test_cuda_tensors_equal_the_file(golden: Checkpoints) -> None:
    """Through the pinned ring, every tensor arrives as it is in the file, aligned, also when cast."""
    device = torch.device("cuda")
    header = read_header(golden.audio_vae)
    expected = load_file(golden.audio_vae)
    for dtype in (None, torch.float32):
        found = load_tensors(header, all_names(header), device=device, dtype=dtype)
        for key, value in expected.items():
            assert found[key].data_ptr() % 16 == 0
            assert torch.equal(found[key].cpu(), value if dtype is None else value.to(dtype))
