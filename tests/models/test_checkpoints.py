"""What strangers' weight files can be: every one loads in full or is an error that says why."""

import argparse
import hashlib
import os
import warnings

import pytest
import torch
from torch import nn

from zoo.errors import UserError
from zoo.models._weights import download, load_matching, read_state


def small():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 3))


def saved(tmp_path, value):
    torch.save(value, tmp_path / "w.pth")
    return tmp_path / "w.pth"


WRAPPINGS = {
    "plain": lambda state: state,
    "state_dict": lambda state: {"state_dict": state, "epoch": 3},
    "model": lambda state: {"model": state},
    "DataParallel": lambda state: {f"module.{k}": v for k, v in state.items()},
    "both": lambda state: {"state_dict": {f"module.{k}": v for k, v in state.items()}},
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_the_usual_wrappings_are_taken_off(tmp_path, wrapping):
    source, target = small(), small()
    path = saved(tmp_path, WRAPPINGS[wrapping](source.state_dict()))
    load_matching(target, read_state(path), path)
    for name, value in source.state_dict().items():
        assert torch.equal(target.state_dict()[name], value), name


class _Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def test_objects_are_refused_and_not_run(tmp_path):
    path = saved(tmp_path, {"a": _Touch(tmp_path / "made")})
    with pytest.raises(UserError, match=r"w\.pth: holds an object \(\w+\.mkdir\), not only tens"):
        read_state(path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (nn.Linear(1, 1), r"holds an object \(torch\.nn\.modules\.linear\.Linear\)"),
        ({"args": argparse.Namespace(), "model": {}}, r"object \(argparse\.Namespace\)"),
        (torch.ones(2), "no plain state_dict"),
        ([torch.ones(2)], "no plain state_dict"),
        ({"lr": 0.1}, "no plain state_dict"),
        ({1: torch.ones(2)}, "no plain state_dict"),
        ({"\x1b[2J": torch.ones(2)}, "no plain state_dict"),
        ({}, "no tensors at all"),
        ({"state_dict": {}}, "no tensors at all"),
    ],
)
def test_other_contents_are_named(tmp_path, value, says):
    with pytest.raises(UserError, match=says):
        read_state(saved(tmp_path, value))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (torch.ones(2, device="meta"), "has a shape but no values"),
        (torch.ones(2, 2).to_sparse(), "is not a dense tensor"),
        (torch.ones(2, dtype=torch.complex64), "is complex"),
        (torch.tensor([1.0, float("nan")]), "holds NaN or infinity"),
        (torch.tensor([1.0, -float("inf")]), "holds NaN or infinity"),
    ],
    ids=["meta", "sparse", "complex", "nan", "infinite"],
)
def test_tensors_that_are_no_weights_are_named(tmp_path, value, says):
    with pytest.raises(UserError, match=rf"w\.pth: 'bad' {says}"):
        read_state(saved(tmp_path, {"good": torch.ones(1), "bad": value}))


@pytest.mark.parametrize("content", [b"", b"\x80", b"<html>Not found</html>", b"PK\x03\x04 zip"])
def test_a_file_of_another_kind_is_named(tmp_path, content):
    (tmp_path / "w.pth").write_bytes(content)
    with pytest.raises(UserError, match=r"w\.pth: is not a file of torch\.save, or is damaged"):
        read_state(tmp_path / "w.pth")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_cut_short_is_named(tmp_path, zipped):
    path = tmp_path / "w.pth"
    torch.save(small().state_dict(), path, _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for cut in range(0, len(whole) - 1, max(1, len(whole) // 40)):
            path.write_bytes(whole[:cut])
            with pytest.raises(UserError, match=r"w\.pth"):
                read_state(path)


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_state(tmp_path / "none.pth")
    with pytest.raises(UserError, match="a folder, not a file"):
        read_state(tmp_path)


def test_a_renamed_layer_is_both_missing_and_unknown():
    state = small().state_dict()
    state["first.weight"] = state.pop("0.weight")
    with pytest.raises(UserError) as error:
        load_matching(small(), state, "w.pth")
    lines = str(error.value).splitlines()
    assert lines == [
        "weights w.pth: only 8 of the network's 9 tensors match",
        "  missing in the file: 0.weight",
        "  unknown to the network: first.weight",
        "  nearest: first.weight may be 0.weight",
    ]


def test_another_shape_is_shown_with_both():
    state = small().state_dict()
    state["2.weight"] = torch.zeros(5, 2, 3, 3)
    with pytest.raises(UserError, match=r"2\.weight \(5, 2, 3, 3\), not \(2, 2, 3, 3\)") as error:
        load_matching(small(), state, "w.pth")
    assert "missing" not in str(error.value)


def test_all_kinds_of_fault_come_in_one_go():
    state = small().state_dict()
    state["2.weight"] = torch.zeros(5)
    state["more"] = torch.zeros(5)
    del state["0.bias"]
    with pytest.raises(UserError, match=r"(?s)0\.bias.*more.*2\.weight"):
        load_matching(small(), state, "w.pth")


def test_nothing_matching_cannot_be_missed():
    state = {f"layer{i}.weight": torch.zeros(1) for i in range(30)}
    with pytest.raises(UserError, match="NOTHING matches") as error:
        load_matching(small(), state, "w.pth")
    assert "layer9.weight, … (30 in all)" in str(error.value)
    assert "layer10" not in str(error.value)


def test_only_ignored_names_is_nothing_as_well():
    with pytest.raises(UserError, match="NOTHING matches"):
        load_matching(small(), {"fc.weight": torch.zeros(1)}, "w.pth", ignore=["fc."])


def test_counters_that_old_files_lack_are_no_fault():
    state = small().state_dict()
    del state["1.num_batches_tracked"]
    load_matching(small(), state, "w.pth")


def test_names_can_be_ignored_and_mapped():
    source, target = small(), small()
    state = {f"old.{name}": value for name, value in source.state_dict().items()}
    state["old.fc.weight"] = torch.zeros(1)
    load_matching(
        target, state, "w.pth", ignore=["fc."], rename=lambda name: name.removeprefix("old.")
    )
    assert torch.equal(target[0].weight, source[0].weight)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An empty folder of torch.hub's, and a server: a folder behind file:// addresses."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    (tmp_path / "server").mkdir()
    return tmp_path


def test_a_download_is_checked_and_kept(hub):
    content = b"weights"
    name = f"net-{hashlib.sha256(content).hexdigest()[:8]}.pth"
    (hub / "server" / name).write_bytes(content)
    url = (hub / "server" / name).as_uri()
    assert download(url) == hub / "hub" / "checkpoints" / name
    (hub / "server" / name).unlink()
    assert download(url).read_bytes() == content


def test_a_download_of_other_content_is_dropped(hub):
    (hub / "server" / "net-01234567.pth").write_bytes(b"weights")
    with pytest.raises(UserError, match="hash"):
        download((hub / "server" / "net-01234567.pth").as_uri())
    assert not list((hub / "hub" / "checkpoints").iterdir())


def test_a_failed_download_says_what_to_put_where(hub):
    url = (hub / "server" / "net-01234567.pth").as_uri()
    with pytest.raises(UserError) as error:
        download(url)
    lines = str(error.value).splitlines()
    assert lines[1:] == [
        f"  get       {url}",
        f"  put it in {hub / 'hub' / 'checkpoints'}",
        "  its SHA-256 begins with 01234567",
        "  or name a file that you have: model.backbone.weights=<file>",
    ]
