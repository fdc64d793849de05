"""One reader of weights: every family takes every format, and refuses the same faults alike."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import sys

import pytest
import torch

import zoo
from zoo import UserError
from zoo.models._safetensors import read_safetensors
from zoo.models._weights import read_state

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def safetensors(state, path):
    """Write a file as the package of that name does; the bytes are those of memory."""
    if sys.byteorder != "little":
        pytest.skip("the format is little-endian")
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, value in state.items():
        raw = value.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        offsets = [len(data), len(data) + len(raw)]
        kind = NAMES[value.dtype]
        header[name] = {"dtype": kind, "shape": list(value.shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def old_torch(state, path):
    torch.save(state, path, _use_new_zipfile_serialization=False)


FORMATS = {
    "w.pth": torch.save,
    "w.pt": old_torch,
    "w.safetensors": safetensors,
    "weights of any name": safetensors,
}

FAMILIES = {
    "torchvision.squeezenet1_1": {},
    "bn_inception": {"levels": "L"},
    "timm.test_resnet": {},
}
PREFIXES = ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "module.module."]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    """Return a function from a file to a network, and the state that it should get."""
    name, arguments = request.param, FAMILIES[request.param]
    if name.startswith("timm.") and importlib.util.find_spec("timm") is None:
        pytest.skip("needs timm")

    def build(path=None):
        torch.manual_seed(0)
        found = zoo.build("backbones", name, weights=path and str(path), **arguments)
        return found if name == "bn_inception" else found.network

    state = {key: value + 1 for key, value in build().state_dict().items()}
    return build, state


@pytest.mark.slow
@pytest.mark.parametrize("file", FORMATS)
def test_every_family_takes_every_format_and_prefix(family, file, tmp_path):
    build, state = family
    path = tmp_path / file
    for prefix in PREFIXES if file == "w.safetensors" else PREFIXES[-3:]:
        FORMATS[file]({f"{prefix}{name}": value for name, value in state.items()}, path)
        found = build(path).state_dict()
        assert all(torch.equal(found[name], value) for name, value in state.items()), prefix


def changed(change):
    def fault(state):
        name = next(name for name, value in state.items() if value.ndim == 4)
        return {**state, name: change(state[name].clone())}

    return fault


def with_value(value):
    return changed(lambda weight: weight.index_fill_(0, torch.tensor([0]), value))


FAULTS = {
    "nan": (with_value(math.nan), "holds NaN or infinity"),
    "infinite": (with_value(-math.inf), "holds NaN or infinity"),
    "beyond float32": (changed(lambda weight: weight.double() * 1e200), "holds NaN or infinity"),
    "whole numbers": (changed(lambda w: w.to(torch.int8)), "whole numbers, not floats: .*.int8"),
    "a mask": (changed(lambda w: w > 0), "whole numbers, not floats: .*.bool"),
    "shape": (changed(lambda w: w[:1]), r"of another shape: .*\(1, .*, not \("),
    "lacking": (lambda state: dict([*state.items()][1:]), "missing in the file: "),
    "nothing": (lambda state: {}, "holds no tensors at all"),
    "another": (lambda state: {"fc.weight": torch.ones(1)}, "NOTHING matches"),
    "inside": (
        lambda state: {f"encoder.{name}": value for name, value in state.items()},
        "(?s)NOTHING matches.*nearest: .* without 'encoder.'",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("file", ["w.pth", "w.safetensors"])
@pytest.mark.parametrize("fault", FAULTS)
def test_every_family_refuses_the_same_in_every_format(family, fault, file, tmp_path):
    build, state = family
    change, says = FAULTS[fault]
    FORMATS[file](change(state), tmp_path / file)
    with pytest.raises(UserError, match=says) as error:
        build(tmp_path / file)
    assert str(error.value).startswith(f"weights {tmp_path / file}: ")


@pytest.mark.parametrize("value", [torch.ones(2, device="meta"), torch.ones(2).to_sparse()])
def test_torch_alone_can_write_these(value, tmp_path):
    torch.save({"w": value}, tmp_path / "w.pth")
    with pytest.raises(UserError, match="'w' (has a shape but no values|is not a dense tensor)"):
        read_state(tmp_path / "w.pth")


def test_names_that_would_become_one_are_left_as_they_are(tmp_path):
    state = {"a": torch.ones(1), "_orig_mod.a": torch.zeros(1)}
    torch.save(state, tmp_path / "w.pth")
    assert read_state(tmp_path / "w.pth").keys() == state.keys()


def test_a_slip_in_a_name_shows_what_it_may_be(tmp_path):
    state = zoo.build("backbones", "torchvision.squeezenet1_1").network.state_dict()
    state["features.0.weigth"] = state.pop("features.0.weight")
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"nearest: \S+weigth may be features\.0\.weight"):
        zoo.build("backbones", "torchvision.squeezenet1_1", weights=str(tmp_path / "w.pth"))


# ---- the format


def test_all_types_and_shapes_come_back(tmp_path):
    state = {str(kind): torch.arange(6).reshape(2, 3).to(kind) for kind in NAMES}
    state |= {"scalar": torch.tensor(3.0), "empty": torch.empty(0, 4), "odd": torch.ones(3).bool()}
    safetensors(state, tmp_path / "w")
    found = read_safetensors(tmp_path / "w")
    assert found.keys() == state.keys()
    for name, value in state.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)
        found[name].zero_()  # its own memory


def test_it_agrees_with_the_package(tmp_path):
    package = pytest.importorskip("safetensors.torch")
    state = {"a": torch.randn(3, 4), "b.c": torch.arange(5), "half": torch.randn(7).half()}
    package.save_file(state, tmp_path / "theirs")
    safetensors(state, tmp_path / "ours")
    for found in (read_safetensors(tmp_path / "theirs"), package.load_file(tmp_path / "ours")):
        assert all(torch.equal(found[name], value) for name, value in state.items())


def entry(kind="F32", shape=(2,), offsets=(0, 8)):
    return {"w": {"dtype": kind, "shape": list(shape), "data_offsets": list(offsets)}}


HEADERS = {
    "no header": (b"{", "its header is damaged"),
    "a list": (b"[1]", "."),
    "deep": (b"{" + b'"a":{' * 100_000, "its header is damaged"),
    "no entry": ({"w": 3}, "its header is damaged at 'w'"),
    "half an entry": ({"w": {"dtype": "F32"}}, "its header is damaged at 'w'"),
    "type": (entry("F99"), "has the type 'F99', which is not supported for weights"),
    "type of a type": (entry(["F32"]), "."),
    "negative": (entry(shape=(-2, -1)), "its header is damaged at 'w'"),
    "backwards": (entry(offsets=(8, 0)), "'w' is not as large as its shape"),
    "true": (entry(shape=(True, 2)), "its header is damaged at 'w'"),
    "small": (entry(shape=(3,)), "'w' is not as large as its shape"),
    "large": (entry(shape=(1 << 40,), offsets=(0, 1 << 42)), "claims more bytes than it has"),
    "outside": (entry(offsets=(1 << 40, (1 << 40) + 8)), "has been cut short"),
    "overlapping": (
        {f"w{i}": entry(shape=(16,), offsets=(0, 64))["w"] for i in range(100)},
        "claims more bytes than it has",
    ),
}


@pytest.mark.parametrize("damage", HEADERS)
def test_a_damaged_header_is_told(damage, tmp_path):
    header, says = HEADERS[damage]
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "w.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(64))
    with pytest.raises(
        UserError, match=rf"w\.safetensors: cannot be read as safetensors: .*{says}"
    ):
        read_state(path)


def test_a_file_cut_short_anywhere_is_told(tmp_path):
    path = tmp_path / "w.safetensors"
    safetensors({"a": torch.randn(5), "b": torch.randn(2, 2)}, path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match=re.escape(f"weights {path}: ")):
            read_state(path)
