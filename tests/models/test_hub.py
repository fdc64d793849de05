"""Weights of a repository, from a server on loopback that speaks the hub's protocol."""

from __future__ import annotations

import hashlib
import http.server
import threading

import pytest
import torch

from zoo import UserError
from zoo.models import _weights
from zoo.models.torchvision_family import TorchvisionBackbone

REVISION = "0" * 40


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder whose files the server has as those of ``owner/name``."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    folder = tmp_path / "served"
    folder.mkdir()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.answer(body=False)

        def do_GET(self):
            self.answer(body=True)

        def answer(self, body):
            path = folder / self.path.rpartition("/")[2]
            if not self.path.startswith("/owner/name/resolve/main/") or not path.is_file():
                missing = "owner/name" not in self.path
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound" if missing else "EntryNotFound")
                self.end_headers()
                return
            data = path.read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
            self.send_header("X-Repo-Commit", REVISION)
            self.end_headers()
            if body:
                self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    download = huggingface_hub.hf_hub_download

    def from_here(repository, name):
        return download(repository, name, endpoint=address, cache_dir=tmp_path / "cache")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", from_here)
    yield folder
    server.shutdown()


def test_weights_of_a_repository_are_those_of_its_file(hub):
    torch.manual_seed(0)
    theirs = TorchvisionBackbone("squeezenet1_1")
    torch.save(theirs.network.state_dict(), hub / "pytorch_model.bin")
    ours = TorchvisionBackbone("squeezenet1_1", "hf:owner/name")
    for name, value in theirs.network.state_dict().items():
        assert torch.equal(ours.network.state_dict()[name], value)


def test_a_file_of_a_repository_may_be_named(hub):
    torch.save({"a": torch.ones(2)}, hub / "other.pth")
    path = _weights.located("hf:owner/name/other.pth")
    assert torch.equal(_weights.read_state(path)["a"], torch.ones(2))


@pytest.mark.parametrize("weights", ["hf:stranger/model", "hf:owner/name", "hf:owner/name/x.pth"])
def test_what_is_not_there(hub, weights):
    with pytest.raises(UserError, match=f"(?s)weights {weights}: could not be downloaded.*get   "):
        _weights.located(weights)


@pytest.mark.parametrize("weights", ["hf:", "hf:name", "hf:owner/", "hf:/name", "hf:owner/name/"])
def test_what_is_no_repository(weights):
    with pytest.raises(UserError, match="write hf:owner/name, or hf:owner/name/file"):
        _weights.located(weights)


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(UserError, match="pip install huggingface_hub"):
        _weights.located("hf:owner/name")


def test_a_path_is_left_alone():
    assert _weights.located("a/b.pth") == "a/b.pth"
    assert [_weights.is_pretrained(w) for w in ("imagenet", "pretrained", "x.pth", None)] == [
        True,
        True,
        False,
        False,
    ]
