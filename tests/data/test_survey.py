"""zoo data: from a server on this machine and miniature archives to a data set that is whole."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import replicas
from loopback import Server, Site
from places import DOCS

import zoo
from zoo import config as configuration
from zoo import registry
from zoo.base import Count, Source, Survey, data_dir
from zoo.cli import main
from zoo.data import download, survey, unpack
from zoo.data.download import Patience
from zoo.errors import UserError
from zoo.registry import components

NAMES = ("cub200", "cars196", "sop")
FOLDERS = {"cub200": "CUB_200_2011", "cars196": "car_ims", "sop": "Stanford_Online_Products"}
MAKE = {
    "cub200": lambda root: replicas.cub(root / FOLDERS["cub200"]),
    "cars196": replicas.cars,
    "sop": lambda root: replicas.sop(root / FOLDERS["sop"]),
}


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """Where data sets are looked for; the replicas count as whole."""
    folder = tmp_path / "data"
    monkeypatch.setenv("ZOO_DATA", str(folder))
    monkeypatch.setenv("COLUMNS", "200")
    for name in NAMES:
        monkeypatch.setattr(components.load("datasets", name), "table", replicas.TABLES[name])
    return folder


@pytest.fixture
def command(command):
    """Return a function that runs ``zoo data``: (status, stdout, stderr)."""
    return partial(command, "data")


def flat(text):
    return " ".join(text.split())


def everything(root):
    return {p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()}


# --- list ---------------------------------------------------------------------------------------


def test_list_of_nothing(command, data):
    status, out, _ = command("list")
    assert status == 0
    assert all(name in out for name in zoo.names("datasets"))
    assert re.search(r"cub200 +2 \+ 2 +6 \+ 6 +no; zoo data download cub200", out)
    assert f"\nlooked for in {data}/<name>\n" in out
    for name in NAMES:
        assert f"no; zoo data download {name}" in out
    assert "dataset.root=<folder>" in out
    assert "needs no files" in out
    assert not data.exists()


@pytest.mark.parametrize("name", NAMES)
def test_list_says_where_a_data_set_is_and_in_which_layout(command, data, name):
    MAKE[name](data / name)
    out = flat(command("list")[1])
    assert next(one.title for one in replicas.LAYOUTS.values() if one.dataset == name) in out
    assert re.search(r"[0-9.]+ kB", out)
    assert re.search(rf" {name}: {data / name}(/{FOLDERS[name]})? ", out)
    next((data / name).rglob("*.[jJ][pP][gG]")).unlink()
    assert f"1 error; zoo data verify {name}" in flat(command("list")[1])


@pytest.mark.parametrize(("width", "left_out"), [(80, "images"), (64, "classes, images")])
def test_a_data_set_is_a_line_with_the_columns_that_fit(
    command, data, monkeypatch, width, left_out
):
    monkeypatch.setenv("COLUMNS", str(width))
    for name in NAMES:
        MAKE[name](data / name)
    large = {"train": Count(59551, 11318), "test": Count(60502, 11316)}  # as published
    monkeypatch.setattr(components.load("datasets", "sop"), "table", large)
    lines = command("list")[1].splitlines()
    names = zoo.names("datasets")
    assert [line.split()[0] for line in lines[1 : 1 + len(names)]] == names
    assert all(len(line) <= width for line in lines[: 1 + len(names)])
    assert f"Not shown at a width of {width}: {left_out}" in lines
    places = [line for line in lines if line.startswith("sop: ")]
    assert places == [f"sop: {data / 'sop' / FOLDERS['sop']}"]  # however long it is


def test_list_of_a_folder_with_something_else(command, data):
    (data / "sop").mkdir(parents=True)
    (data / "sop" / ".sop.zip.lock").touch()  # what a download that failed leaves
    assert "zoo data download sop" in flat(command("list")[1])
    (data / "sop" / "notes.txt").touch()
    assert "has none of these" in flat(command("list")[1])


def test_list_of_a_data_set_that_cannot_be_loaded(command, monkeypatch):
    load = registry.load

    def broken(kind, name):
        if name == "sop":
            raise UserError("sop: no such module")
        return load(kind, name)

    monkeypatch.setattr(registry, "load", broken)
    status, out, _ = command("list")
    assert status == 0
    assert "broken: sop: no such module" in out


def test_list_imports_no_torch(tmp_path):
    code = "import sys; from zoo.cli import data; data.list_.callback()"
    code += "; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.splitlines()[-1] == "False"


# --- verify -------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", replicas.LAYOUTS)
def test_verify_each_layout(command, tmp_path, layout):
    name, title, inside, make = replicas.LAYOUTS[layout]
    root = tmp_path / "some where"
    make(root)
    status, out, _ = command("verify", name, "--root", root)
    assert status == 0
    assert out.splitlines()[:2] == [f"{name}: {title}", str(root / inside)]
    assert out.splitlines()[-1] == f"{name}: nothing is wrong"
    train = replicas.TABLES[name]["train"]
    assert re.search(rf"train +{train.images} +{train.classes} .*{train.images} images of", out)
    pictures = sorted(root.rglob("*.[jJ][pP][gG]"))
    replicas.save_photo(pictures[0], 1, "L")
    assert command("verify", name, "--root", root)[0] == 0  # they are normal in these sets
    replicas.truncate(pictures[1])
    status, out, _ = command("verify", name, "--root", root)
    assert status == 1
    error, note = (line for line in out.splitlines() if line.split()[0] in ("error", "note"))
    assert pictures[1].relative_to(root / inside).as_posix() in error
    assert "truncated" in error
    assert "gray images (1):" in note
    assert out.splitlines()[-1] == f"{name}: 1 error"


def test_verify_finds_duplicates_missing_files_and_wrong_numbers(command, data, monkeypatch):
    folder = replicas.sop(data / "sop" / FOLDERS["sop"])
    replicas.photo(5, size=(40, 20)).save(folder / "bicycle_final/111085122871_1.JPG")
    status, out, _ = command("verify", "sop")
    assert (status, "images with a side under 32 pixels (1)" in out) == (0, True)
    shutil.copy(folder / "bicycle_final/111085122871_0.JPG", folder / "toaster_final/8_2.JPG")
    status, out, _ = command("verify", "sop")
    assert status == 1
    assert "the same file in both splits: 'toaster_final/8_2.JPG'" in out
    assert out.splitlines()[-1] == "sop: 1 warning"
    (folder / "coffee_maker_final/7_0.JPG").unlink()
    monkeypatch.undo()
    status, out, _ = command("verify", "sop", "--root", data / "sop")
    assert status == 1
    assert re.search(
        r"error +train: 5 images of 2 classes, but published results are for 59,551", out
    )
    assert re.search(r"error +coffee_maker_final/7_0.JPG: the file is missing", out)
    assert re.search(r"train +4 +2 +1 to 3 +59,551 images of 11,318 classes", out)
    assert out.splitlines()[-1] == "sop: 3 errors and 1 warning"


def test_verify_on_a_terminal_shows_the_first_hundred(data, monkeypatch, command):
    species = {3: "003.a", 4: "004.b", 101: "101.c"}
    folder = replicas.cub(data / "cub200" / FOLDERS["cub200"], species, 40)
    for one in folder.rglob("*.jpg"):
        one.unlink()
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert command("verify", "cub200")[1].count("missing") == 98
    assert "22 more" in command("verify", "cub200")[1]


@pytest.mark.parametrize("name", NAMES)
def test_verify_what_is_not_there(command, data, name):
    status, out, err = command("verify", name)
    assert (status, out) == (2, "")
    first, second, third = err.splitlines()
    assert first == f"error: {name}: dataset.root={str(data / name)!r} does not exist"
    dead = " (no address has cars_annos.mat and car_ims.tgz any more)" * (name == "cars196")
    assert second == f"download it with: zoo data download {name}{dead}"
    for source in components.load("datasets", name).sources:
        assert f"{source.filename} (" in third
        assert f"MD5 {source.md5}" in third
    assert f"into {str(data / name)!r}" in third


def test_verify_photographs(command, tmp_path):
    root = tmp_path / "photographs"
    for i in range(16):
        replicas.save_photo(root / "train" / f"class {i // 4}" / f"{i}.jpg", i)
        replicas.save_photo(root / "test" / f"other {i // 8}" / f"{i}.jpg", 100 + i)
    (root / "train" / "class 0" / ".DS_Store").write_bytes(b"")
    status, out, _ = command("verify", "image_folder", "--root", root)
    assert (status, "train/class 0/.DS_Store" in out) == (0, True)
    assert re.search(r"train +16 +4 +4 to 4", out)
    replicas.truncate(root / "train" / "class 1" / "5.jpg")
    shutil.copy(root / "train/class 2/9.jpg", root / "test/other 1/9.jpg")
    status, out, _ = command("verify", "image_folder", "--root", root)
    assert status == 1
    assert "train/class 1/5.jpg" in out
    assert "the same file in both splits: 'test/other 1/9.jpg'" in " ".join(out.split())
    assert "1 error and 1 warning" in out


def test_verify_glyphs(command):
    status, out, _ = command("verify", "glyphs")
    assert status == 0
    assert re.search(r"test +13,\d\d\d +1,161 ", out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "there is no data set named 'nope'"),
        (["image_folder"], "image_folder has no default folder: give its folder with --root"),
        (["glyphs", "--root", "x"], "root: unknown argument of glyphs"),
        (["sop", "--root", ""], "dataset.root='' is not a folder"),
    ],
)
def test_verify_what_cannot_be(command, arguments, message):
    status, out, err = command("verify", *arguments)
    assert (status, out) == (2, "")
    assert message in err


class Strange:
    """A stranger's data set."""

    lines: Sequence[str] = ()

    def __init__(self, split, root="here"):
        self.split, self.root = split, root
        self.class_names = ["a", "b"]
        self.labels = np.array([0, 0, 1])

    def __len__(self):
        return 3

    def verify(self):
        if self.root == "wrong":
            raise OSError("lost")
        return [*self.lines, f"error: '{self.root}/1.jpg': gone", "odd", "note: 'x': gray"]


@pytest.fixture
def strange(monkeypatch):
    monkeypatch.setattr(components, "_registered", dict(components._registered))
    return zoo.register("datasets", "strange")(Strange)


def test_verify_a_stranger_s_data_set(command, strange, monkeypatch):
    status, out, _ = command("verify", "strange", "--root", "there")
    assert status == 1
    assert re.search(r"train +3 +2 +1 to 2", out)
    assert re.search(r"error +there/1.jpg: gone\nerror +odd\nnote +x: gray\n", out)
    assert "strange: 2 errors" in out
    monkeypatch.setattr(strange, "verify", lambda self: ["note: fine"])
    assert command("verify", "strange")[0] == 0
    assert "strange" in command("list")[1]


def test_verify_a_stranger_s_data_set_that_fails(command, strange):
    status, _, err = command("verify", "strange", "--root", "wrong")
    assert status == 2
    assert "verifying strange failed: OSError: lost" in err


def test_hostile_names_do_nothing_to_the_terminal(command, strange, monkeypatch):
    monkeypatch.setattr(strange, "lines", ["error: 'a\x1b[2J[red]\udcff': b\nc\x1b"])
    _, out, _ = command("verify", "strange")
    assert r"'a\x1b[2J[red]\udcff'" in out
    assert "\x1b" not in out


# --- download -----------------------------------------------------------------------------------


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download, "PATIENCE", Patience(5.0, 2, sleep=lambda _: None))
    server = Server()
    server.run()
    yield server
    server.stop()


@pytest.fixture
def offer(server, tmp_path, monkeypatch):
    """Return a function that offers the archives of a data set: its address, and each file's site.

    The digests that the data set knows are those of the archives, unless other contents are given.
    """

    def offer(name, **contents):
        target = components.load("datasets", name)
        MAKE[name](tmp_path / "original")
        sites, sources = {}, []
        for source in target.sources:
            file = tmp_path / "original" / source.filename
            if source.holds:
                replicas.pack(tmp_path / "original" / source.holds, file)
            content = contents.get("content") or file.read_bytes()
            md5 = hashlib.md5(content).hexdigest()
            changed = {"md5": md5, "sha256": None, "size": len(content), "urls": ()}
            sources.append(replace(source, **changed))
            sites[source.filename], url = server.add(f"/{source.filename}", Site(content))
        monkeypatch.setattr(target, "sources", tuple(sources))
        return url.rpartition("/")[0] + "/", sites

    return offer


@pytest.mark.parametrize("name", NAMES)
def test_download_check_and_unpack(command, offer, data, name):
    url, sites = offer(name)
    status, out, err = command("download", name, "--url", url)
    assert status == 0, err
    assert out.splitlines()[0].startswith(f"{name}: ")
    assert "has the right MD5" in err
    root = data / name
    pictures = everything(root / FOLDERS[name])
    assert pictures
    assert pictures == everything(root.parent.parent / "original" / FOLDERS[name])
    assert not [p for p in everything(root) if p.endswith((".part", ".half"))]
    assert command("verify", name)[0] == 0
    train = components.build("datasets", name, split="train")
    assert (len(train), train[0][1]) == (replicas.TABLES[name]["train"].images, 0)
    # once more: nothing is asked for
    asked = sum(len(site.log) for site in sites.values())
    status, _, err = command("download", name, "--url", url)
    assert (status, err) == (0, f"{name} is there already\n")
    assert sum(len(site.log) for site in sites.values()) == asked == len(sites)


def test_download_to_a_folder_and_from_the_address_of_a_file(command, offer, tmp_path):
    url, _ = offer("cub200")
    root = tmp_path / "my folder"
    status, out, _ = command(
        "download", "cub200", "--root", root, "--url", url + "CUB_200_2011.tgz"
    )
    assert status == 0
    assert str(root / FOLDERS["cub200"]) in out
    assert not data_dir("cub200").exists()


def test_an_address_of_one_of_several_files(command, offer):
    url, _ = offer("cars196")
    assert command("download", "cars196", "--url", url + "car_ims.tgz")[0] == 1
    status, _, err = command("download", "cars196", "--url", url + "x")
    assert status == 2
    assert "which of cars_annos.mat, car_ims.tgz is it?" in err
    assert command("download", "cars196", "--url", url + "cars_annos.mat")[0] == 0


def test_a_broken_download_goes_on(command, offer, data):
    url, sites = offer("cub200")
    site = sites["CUB_200_2011.tgz"]
    size = len(site.data[0])
    site.breaks = [5000, 0, 0]
    status, out, err = command("download", "cub200", "--url", url)
    assert (status, out) == (1, "")
    assert "stopped at 5,000 of" in err
    assert "its first 5,000 bytes are kept in CUB_200_2011.tgz.part" in err
    assert err.splitlines()[-1] == "then: zoo data download cub200"
    assert not (data / "cub200" / FOLDERS["cub200"]).exists()
    site.breaks = [None]
    site.log.clear()
    assert command("download", "cub200", "--url", url)[0] == 0
    assert site.requests[0]["Range"] == "bytes=5000-"
    assert site.sent == [size - 5000]


@pytest.mark.parametrize("wrong", ["content", "size"])
def test_a_wrong_file_is_never_unpacked(command, offer, data, wrong):
    url, sites = offer("sop")
    site = sites["Stanford_Online_Products.zip"]
    right = site.data[0]
    site.data = [right[:-1] + b"x" if wrong == "content" else right + b"x"]
    status, _, err = command("download", "sop", "--url", url)
    assert status == 1
    assert ("sent a different file: md5" if wrong == "content" else "offers ") in err
    assert hashlib.md5(right).hexdigest() in err
    assert {p for p in everything(data / "sop") if not p.startswith(".")} == set()
    site.data = [right]
    assert command("download", "sop", "--url", url)[0] == 0


def tgz(*members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            if kind == tarfile.REGTYPE:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                info.linkname = content
                archive.addfile(info)
    return out.getvalue()


def zipped(*names):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    return out.getvalue()


IN = "CUB_200_2011/images.txt", tarfile.REGTYPE, b"1 a/1.jpg"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("cub200", tgz(IN, ("../../out", tarfile.REGTYPE, b"x")), "leads out of the folder"),
        ("cub200", tgz(IN, ("/tmp/out", tarfile.REGTYPE, b"x")), "has an absolute path"),
        ("cub200", tgz(IN, ("CUB_200_2011/l", tarfile.SYMTYPE, "/etc")), "is neither a plain file"),
        (
            "cub200",
            tgz(IN, ("CUB_200_2011/l", tarfile.LNKTYPE, "/etc/passwd")),
            "is neither a plain file",
        ),
        ("cub200", tgz(("other/x", tarfile.REGTYPE, b"")), "holds no folder 'CUB_200_2011'"),
        ("cub200", tgz(IN)[:-20], "damaged"),
        ("cub200", b"<html>", "damaged, or not an archive"),
        ("sop", zipped("Stanford_Online_Products/a", "../../out"), "leads out of the folder"),
        ("sop", zipped("Stanford_Online_Products/a", "..\\out"), "a backslash"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_an_archive_that_is_refused(command, offer, data, tmp_path, name, content, message):
    url, _ = offer(name, content=content)
    before = everything(tmp_path)
    status, out, err = command("download", name, "--url", url)
    assert (status, out) == (2, "")
    assert message in err
    made = {p for p in everything(tmp_path) - before if not p.rpartition("/")[2].startswith(".")}
    assert made == {f"data/{name}/{components.load('datasets', name).sources[0].filename}"}
    assert not (data / name / FOLDERS[name]).exists()
    with pytest.raises(UserError):
        components.build("datasets", name, split="train")


def test_an_archive_that_unpacks_to_too_much(command, offer, data, monkeypatch):
    url, _ = offer("cub200")
    target = components.load("datasets", "cub200")
    monkeypatch.setattr(target, "sources", (replace(target.sources[0], most_bytes=5000),))
    status, _, err = command("download", "cub200", "--url", url)
    assert status == 2
    assert "5,000 bytes" in err
    assert not (data / "cub200" / FOLDERS["cub200"]).exists()


def test_a_server_that_is_gone(command, offer, server, data):
    url, _ = offer("cub200")
    (source,) = components.load("datasets", "cub200").sources
    server.vanish()
    status, out, err = command("download", "cub200", "--url", url)
    assert (status, out) == (1, "")
    lines = [line for line in err.splitlines() if "trying again" not in line]
    assert lines == [
        "error: CUB_200_2011.tgz could not be downloaded",
        f"  {url}CUB_200_2011.tgz: connection failed, Connection refused (tried 2 times)",
        f"  get it by other means: CUB_200_2011.tgz ({source.size:,} bytes, MD5 {source.md5})",
        f"  and put it in {data / 'cub200'}",
        "then: zoo data download cub200",
    ]


def test_files_that_nobody_has_any_more(command, data, tmp_path):
    status, _, err = command("download", "cars196")
    assert status == 1
    assert "no known address has it any more" in err
    assert "cars_annos.mat (MD5 b407c6086d669747186bd1d764ff9dbc)" in err
    assert "car_ims.tgz (MD5 d5c8f0aa497503f355e17dc7886c3f14)" in err
    assert err.count(f"and put it in {data / 'cars196'}") == 2
    assert err.splitlines()[-1] == "then: zoo data download cars196"
    status, _, err = command("download", "cars196", "--root", tmp_path / "a b")
    assert err.splitlines()[-1] == f"then: zoo data download cars196 --root '{tmp_path / 'a b'}'"


def test_files_that_were_put_there_by_hand(command, offer, data, tmp_path):
    offer("cars196")
    (data / "cars196").mkdir(parents=True)
    for name in ("cars_annos.mat", "car_ims.tgz"):
        shutil.copy(tmp_path / "original" / name, data / "cars196")
    status, out, err = command("download", "cars196")
    assert status == 0, err
    assert "cars196: car_ims.tgz with cars_annos.mat" in out
    assert command("verify", "cars196")[0] == 0


def test_a_wrong_file_that_was_put_there_by_hand(command, offer, data):
    url, sites = offer("sop")
    (data / "sop").mkdir(parents=True)
    (data / "sop" / "Stanford_Online_Products.zip").write_bytes(b"something else")
    status, _, err = command("download", "sop", "--url", url)
    assert status == 2
    assert "exists, but is not the right file" in err
    assert sites["Stanford_Online_Products.zip"].log == []


def test_a_tree_that_is_not_whole_is_left_alone(command, offer, data):
    url, sites = offer("cub200")
    folder = replicas.cub(data / "cub200" / FOLDERS["cub200"])
    lost = next(folder.rglob("*.jpg"))
    lost.unlink()
    before = everything(data)
    status, _, err = command("download", "cub200", "--url", url)
    assert status == 2
    assert "is not complete" in err
    assert lost.name in err
    assert "move that folder away, and run again" in err
    assert everything(data) == before
    assert sites["CUB_200_2011.tgz"].log == []


@pytest.mark.parametrize("kind", ["empty folder", "file", "dangling link"])
def test_what_is_in_the_way_is_named(command, offer, data, kind):
    url, sites = offer("cub200")
    place = data / "cub200" / FOLDERS["cub200"]
    place.parent.mkdir(parents=True)
    make = {
        "empty folder": place.mkdir,
        "file": place.touch,
        "dangling link": lambda: place.symlink_to("nowhere"),
    }
    make[kind]()
    status, _, err = command("download", "cub200", "--url", url)
    assert status == 2
    assert f"{str(place)!r} is in the way: move it away, and run again" in err
    assert "download it with" not in err
    assert sites["CUB_200_2011.tgz"].log == []


def test_a_folder_that_cannot_be_looked_into_hides_no_other(command, data, monkeypatch):
    (data / "cub200").mkdir(parents=True)
    (data / "cub200" / "images").mkdir()

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", "secret")

    monkeypatch.setattr(components.load("datasets", "cub200"), "survey", refuse)
    status, out, _ = command("list")
    assert status == 0
    assert "Permission denied" in out
    assert "sop" in out


def test_ctrl_c_leaves_no_folder_that_looks_whole(command, offer, data, monkeypatch):
    url, sites = offer("sop")

    def interrupt(self, *member):
        if self.files == 3:
            raise KeyboardInterrupt
        return add(self, *member)

    add = unpack._Tree.add
    monkeypatch.setattr(unpack._Tree, "add", interrupt)
    status, _, err = command("download", "sop", "--url", url)
    assert status == 1
    assert err.splitlines()[-1] == "stopped; the same command resumes"
    assert not (data / "sop" / FOLDERS["sop"]).exists()
    monkeypatch.setattr(unpack._Tree, "add", add)
    assert command("download", "sop", "--url", url)[0] == 0
    assert len(sites["Stanford_Online_Products.zip"].log) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["glyphs"], "glyphs cannot be downloaded, only cars196, cub200, sop can"),
        (["nope"], "there is no data set named 'nope'"),
        (["sop", "--url", "ftp://host/x"], "not an address that begins with http:// or https://"),
        (["sop", "--root", ""], "is not a folder"),
        (["sop", "--root", "~nobody_of_that_name/x"], "~nobody_of_that_name"),
    ],
)
def test_download_what_cannot_be(command, arguments, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    status, out, err = command("download", *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


# --- the rest -----------------------------------------------------------------------------------


@pytest.mark.parametrize("config", ["ice_cub", "rll_cars", "cce_sop"])
def test_a_run_without_its_data_set_says_in_three_lines_what_to_do(config, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["zoo", "run", config])
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 2
    first, second, third = capsys.readouterr().err.splitlines()
    assert "does not exist" in first
    assert second.startswith("download it with: zoo data download ")
    assert re.search(r"or put .*MD5 [0-9a-f]{32}\).* into '.*': that command then verifies", third)


def test_a_run_says_which_layout_was_recognised(data, monkeypatch, capsys, tmp_path):
    replicas.cub_folders(data / "cub200")
    small = ["model.backbone={name: convnet, width: 2}", "images.resize=36", "images.crop=32"]
    monkeypatch.setattr(sys, "argv", ["zoo", "run", "pretrained_cub", *small, "device=cpu"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main.main()
    assert not end.value.code
    layout = replicas.LAYOUTS["cub_folders"].title
    assert f"\ndata     {layout}, in {data / 'cub200'}\n" in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_what_is_known_of_the_files_is_well_formed(name):
    sources = components.load("datasets", name).sources
    assert all(isinstance(one, Source) for one in sources)
    for one in sources:
        assert re.fullmatch("[0-9a-f]{32}", one.md5)
        assert re.fullmatch("[0-9a-f]{64}", one.sha256 or "0" * 64)
        assert all(download._is_web_address(url) for url in one.urls)
    assert [one.holds for one in sources if one.holds] == [FOLDERS[name]]


def test_the_known_addresses_give_way_to_those_that_are_given(offer):
    offer("cub200")
    (source,) = components.load("datasets", "cub200").sources
    source = replace(source, urls=("http://a/x",))
    (kept,) = survey._mirrored("x", [source], [])
    assert kept.urls == ("http://a/x",)
    (given,) = survey._mirrored("x", [source], ["http://b/", "http://c/any?id=1"])
    assert given.urls == ("http://b/CUB_200_2011.tgz", "http://c/any?id=1")


def test_nothing_is_warned_of_when_all_is_well(data):
    replicas.cub(data / "cub200" / FOLDERS["cub200"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert survey.survey("cub200").findings == []


DOC = (DOCS / "data.md").read_text("utf-8")
LINES = [
    line.split("#")[0].split()
    for block in re.findall(r"^```sh\n(.*?)^```", DOC, re.S | re.M)
    for line in block.splitlines()
]


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_every_command_of_the_page_is_one(line, command, monkeypatch):
    if line[1] == "run":
        assert configuration.load(line[2], line[3:]).dataset.name == "image_folder"
        return
    done = []
    found = Survey(None, "", {}, [])
    monkeypatch.setattr(survey, "download", lambda *given: (done.append(given), found)[1])
    monkeypatch.setattr(survey, "survey", lambda *given: (done.append(given), found)[1])
    status, _, err = command(*line[2:])
    assert (status, err) == (0, "")
    assert [given[0] for given in done] == ([line[3]] if len(line) > 3 else [])


def test_the_page_tells_what_is_known_of_the_files():
    assert len(LINES) == 7
    rows = re.findall(r"^\|.*\| `(\S+)` \| ([0-9,]*) ?\| `([0-9a-f]{32})` \|$", DOC, re.M)
    assert rows == [
        (one.filename, "" if one.size is None else f"{one.size:,}", one.md5)
        for name in ("cub200", "cars196", "sop")
        for one in components.load("datasets", name).sources
    ]


def test_counts_in_words():
    assert str(Count(1, 1)) == "1 image of 1 class"
    assert str(Count(2000, 1)) == "2,000 images of 1 class"
