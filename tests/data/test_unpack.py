"""Archives that try to get out, that never end, or that are cut off."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import signal
import stat
import struct
import subprocess
import sys
import tarfile
import warnings
import zipfile
from pathlib import Path

import pytest
from rich.console import Console

from zoo.data import unpack as module
from zoo.data.unpack import unpack
from zoo.errors import UserError
from zoo.progress import Reporter

FILES = {"set/a/1.jpg": b"one", "set/a/2.jpg": b"", "set/b/ü 1.jpg": bytes(2_000_000), "list": b"l"}
QUIET = Reporter(quiet=True)
NEITHER = "is neither a plain file nor a folder; nothing was unpacked"


def tar(*members, mode="w:", **settings):
    """Return a tar file of (name, content), of (name, type, target) and of TarInfo."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, **settings) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            if isinstance(member[1], bytes | str) and len(member) == 3:
                info.type, info.linkname = member[1], member[2]
                archive.addfile(info)
            else:
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return out.getvalue()


def folder(name):
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o7777
    return info


def zipped(*members, method=zipfile.ZIP_DEFLATED):
    """Return a zip file of (name, content) and (name, content, mode of the file system)."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content, *mode in members:
            info = zipfile.ZipInfo("x")
            info.filename = name  # past the constructor, which mends it
            info.compress_type = method
            info.external_attr = (mode[0] if mode else 0o644) << 16
            archive.writestr(info, content)
    return out.getvalue()


KINDS = {
    "tar": lambda *m: tar(*m),
    "tgz": lambda *m: tar(*m, mode="w:gz"),
    "bz2": lambda *m: tar(*m, mode="w:bz2"),
    "xz": lambda *m: tar(*m, mode="w:xz"),
    "gnu": lambda *m: tar(*m, format=tarfile.GNU_FORMAT),
    "zip": lambda *m: zipped(*m),
    "stored": lambda *m: zipped(*m, method=zipfile.ZIP_STORED),
}
every_kind = pytest.mark.parametrize("make", [pytest.param(f, id=k) for k, f in KINDS.items()])
tar_and_zip = pytest.mark.parametrize("make", [tar, zipped])


@pytest.fixture
def open_up(tmp_path):
    """Return the function that unpacks the bytes of an archive as the folder data/set."""

    def open_up(data, *, into="set", most_bytes=10**7, most_files=100, **more):
        archive = tmp_path / "archive"
        archive.write_bytes(data)
        target = tmp_path / "data" / into
        limits = {"most_bytes": most_bytes, "most_files": most_files}
        return unpack(archive, target, reporter=QUIET, **limits, **more)

    return open_up


@pytest.fixture
def refused(open_up, tmp_path):
    """Return the function that expects a refusal which leaves nothing behind."""

    def refused(data, match, **more):
        (tmp_path / "outside").mkdir(exist_ok=True)
        before = everything(tmp_path / "outside")
        with pytest.raises(UserError, match=match) as caught:
            open_up(data, **more)
        assert str(tmp_path / "archive") in str(caught.value)
        assert "RefusedError" not in str(caught.value)
        assert {p.name for p in tmp_path.iterdir()} == {"archive", "data", "outside"}
        assert {p.name for p in (tmp_path / "data").iterdir()} <= {".set.lock"}
        assert everything(tmp_path / "outside") == before
        return str(caught.value)

    return refused


def everything(root):
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


# --- what is unpacked ---------------------------------------------------------------------------


@every_kind
def test_each_kind_of_archive(open_up, tmp_path, make):
    target = open_up(make(*FILES.items()))
    assert target == tmp_path / "data" / "set"
    assert everything(target) == FILES
    assert {p.name for p in target.parent.iterdir()} <= {"set", ".set.lock"}


def test_folders_dots_and_double_slashes(open_up):
    members = [folder("."), folder("./a"), folder("a/"), ("./a//./1", b"1"), folder("empty")]
    target = open_up(tar(*members))
    assert everything(target) == {"a/1": b"1"}
    assert (target / "empty").is_dir()


def test_long_names(open_up):
    name = "/".join(["n" * 200] * 4)
    for make in (KINDS["tar"], KINDS["gnu"], KINDS["zip"]):
        target = open_up(make((name, b"x")), into=str(hash(make)))
        assert everything(target) == {name: b"x"}


def test_owners_and_modes_of_strangers_are_not_taken(open_up):
    setuid = tarfile.TarInfo("setuid")
    setuid.mode, setuid.uid = 0o6777, 12345
    secret = tarfile.TarInfo("secret")
    secret.mode = 0
    before = os.umask(0o027)
    try:
        target = open_up(tar(setuid, secret, folder("a")))
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in target.iterdir()}
        assert modes == {"setuid": 0o640, "secret": 0o640, "a": 0o750}
        assert stat.S_IMODE(target.stat().st_mode) == 0o750
        os.umask(0)
        zipped_too = open_up(zipped(("s", b"", 0o106777), ("a/", b"", 0o41777)), into="z")
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in zipped_too.iterdir()}
        assert modes == {"s": 0o644, "a": 0o755}
        assert stat.S_IMODE(zipped_too.stat().st_mode) == 0o755
    finally:
        os.umask(before)
    assert (target / "setuid").stat().st_uid != 12345


@tar_and_zip
def test_limits_that_are_just_met(open_up, make):
    target = open_up(make(("a/b", b"12"), ("c", b"345")), most_bytes=5, most_files=3)
    assert everything(target) == {"a/b": b"12", "c": b"345"}


def test_a_bar_on_a_terminal(tmp_path):
    out = io.StringIO()
    (tmp_path / "set[1].tgz").write_bytes(KINDS["tgz"](*FILES.items()))
    reporter = Reporter(Console(file=out, force_terminal=True, width=120))
    limits = {"most_bytes": 10**7, "most_files": 100}
    unpack(tmp_path / "set[1].tgz", tmp_path / "set", reporter=reporter, **limits)
    assert "unpacking set[1].tgz" in out.getvalue()
    assert "4 files" in out.getvalue()


# --- the target ---------------------------------------------------------------------------------


def test_a_target_that_is_there_is_left_alone(open_up, tmp_path):
    target = tmp_path / "data" / "set"
    target.mkdir(parents=True)
    (target / "mine").write_bytes(b"mine")
    assert open_up(b"not even an archive") == target
    assert everything(target.parent) == {"set/mine": b"mine"}


def test_an_empty_folder_is_no_target(open_up, tmp_path):
    (tmp_path / "data" / "set").mkdir(parents=True)
    with pytest.raises(UserError, match="is empty"):
        open_up(tar(*FILES.items()))


@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_something_else_in_its_place(open_up, tmp_path, kind):
    (tmp_path / "data").mkdir()
    target = tmp_path / "data" / "set"
    target.write_text("") if kind == "file" else target.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="is in the way"):
        open_up(tar(*FILES.items()))
    assert not (tmp_path / "nowhere").exists()


@every_kind
def test_one_folder_of_the_archive(open_up, tmp_path, make):
    target = open_up(make(*FILES.items()), inner="set")
    assert everything(target) == {k[4:]: v for k, v in FILES.items() if k.startswith("set/")}
    assert {p.name for p in target.parent.iterdir()} == {"set", ".set.lock"}


@pytest.mark.parametrize("inner", ["gone", "list"])
def test_an_archive_without_that_folder(refused, inner):
    refused(tar(*FILES.items()), f"holds no folder '{inner}'", inner=inner)


@pytest.mark.parametrize("inner", ["../victim", "set/../../../victim", "set\\..\\x", "C:x", "/"])
def test_a_folder_outside_the_archive_is_never_moved(open_up, tmp_path, monkeypatch, inner):
    victim = tmp_path / "victim"
    victim.mkdir()
    monkeypatch.setattr(module, "_extract", lambda *_: pytest.fail("unpacked"))
    (tmp_path / "data").mkdir()
    for outside in (inner, str(victim)):
        with pytest.raises(UserError, match="inner must be a folder of the archive: member "):
            open_up(tar(*FILES.items()), inner=outside)
    assert victim.is_dir()
    assert not any((tmp_path / "data").iterdir())


def test_an_archive_that_is_not_there(tmp_path):
    for archive in (tmp_path / "none", tmp_path, tmp_path / "null\0byte"):
        with pytest.raises(UserError, match="cannot be read"):
            unpack(archive, tmp_path / "data" / "set", most_bytes=1, most_files=1)
    assert not (tmp_path / "data" / "set").exists()


def test_a_parent_that_cannot_be_made(open_up, tmp_path):
    (tmp_path / "data").write_text("in the way")
    with pytest.raises(UserError, match="cannot be written"):
        open_up(tar(*FILES.items()))


def test_a_disk_that_is_full(refused, monkeypatch, tmp_path, open_up):
    class Full(io.BytesIO):
        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module._Tree, "_create", lambda *_: Full())
    with pytest.raises(UserError, match="data/set: no room left on the disk"):
        open_up(tar(*FILES.items()))
    assert {p.name for p in (tmp_path / "data").iterdir()} <= {".set.lock"}


# --- ways out -----------------------------------------------------------------------------------


@tar_and_zip
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("/outside/x", "absolute path"),
        ("//outside/x", "absolute path"),
        ("../outside/x", "leads out"),
        ("a/../../outside/x", "leads out"),
        ("a/..", "leads out"),
        ("./../x", "leads out"),
        ("a/.. /x", "leads out"),
        (".../x", "leads out"),
        ("C:/x", "colon"),
        ("C:x", "colon"),
        ("a/b.txt:stream", "colon"),
        ("..\\outside\\x", "backslash"),
        ("\\\\host\\share\\x", "backslash"),
        ("a\\b", "backslash"),
        ("a\nb", "control characters"),
        ("a\x1b[31m", "control characters"),
        ("/".join("a" * 65), "folders deep"),
        ("/".join("a" * 3000), "folders deep"),
        ("n" * 256, "longer than disks allow"),
        ("ü" * 128, "longer than disks allow"),
    ],
)
def test_names_that_lead_elsewhere(refused, make, name, why):
    message = refused(make(("first", b""), (name, b"x")), why)
    assert f"member {name[:200]!r}" in message


def test_a_null_byte_in_a_name(refused):
    refused(zipped(("a\0/../../outside/x", b"x")), "control characters")
    info = tarfile.TarInfo("short")
    info.pax_headers = {"path": "a\0b"}
    refused(tar(info, format=tarfile.PAX_FORMAT), "control characters")


def test_names_that_are_not_utf_8(refused):
    refused(tar(("\udcff.jpg", b"")), r"not in UTF-8")
    refused(tar(("\udcff.jpg", b""), format=tarfile.GNU_FORMAT), r"member '\\udcff.jpg'")
    data = zipped(("ü.jpg", b"")).replace("ü".encode(), b"\xff\xff")
    refused(data, "UnicodeDecodeError|UTF-8|control")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
@pytest.mark.parametrize("to", ["../outside", "/etc/passwd", "a", "../../outside/x", ""])
def test_links_in_a_tar_file(refused, kind, to):
    refused(tar(("a", b""), ("link", kind, to)), f"member 'link' {NEITHER}")


def test_a_file_through_a_link_of_a_tar_file(refused, tmp_path):
    outside = str(tmp_path / "outside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x").write_bytes(b"mine")
    refused(tar(("way", tarfile.SYMTYPE, outside), ("way/x", b"yours")), f"member 'way' {NEITHER}")
    refused(tar(("x", tarfile.LNKTYPE, f"{outside}/x"), ("x", b"yours")), f"member 'x' {NEITHER}")
    refused(tar(("x", tarfile.SYMTYPE, f"{outside}/x"), ("x", b"yours")), f"member 'x' {NEITHER}")


def test_a_link_that_is_planted_meanwhile_is_not_followed(refused, tmp_path, monkeypatch):
    (tmp_path / "outside").mkdir()
    create = module._Tree._create

    def plant(self, parts):
        self.root.joinpath(*parts).symlink_to(tmp_path / "outside" / "x")
        return create(self, parts)

    monkeypatch.setattr(module._Tree, "_create", plant)
    refused(tar(("x", b"yours")), "member 'x' clashes with another member on this disk")


def test_links_in_a_zip_file(refused):
    refused(
        zipped(("way", b"../outside", 0o120777), ("way/x", b"yours")), f"member 'way' {NEITHER}"
    )


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_devices_and_pipes_in_a_tar_file(refused, kind):
    info = tarfile.TarInfo("null")
    info.type, info.devmajor, info.devminor = kind, 1, 3
    refused(tar(info), f"member 'null' {NEITHER}")


@pytest.mark.parametrize("mode", [0o020666, 0o060666, 0o010666, 0o140666])
def test_devices_and_pipes_in_a_zip_file(refused, mode):
    refused(zipped(("null", b"", mode)), f"member 'null' {NEITHER}")


@tar_and_zip
def test_names_that_come_twice(refused, make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of zipfile, which writes it all the same
        twice = make(("a/b", b"1"), ("a/b", b"2"))
    refused(twice, "member 'a/b' clashes with another member on this disk")
    refused(make(("a/b", b"1"), ("a/./b", b"2")), "member 'a/./b' clashes with another")
    refused(make(("a", b"1"), ("a/b", b"2")), "member 'a/b' clashes with another")
    refused(make(("a/b", b"1"), ("a", b"2")), "member 'a' clashes with another")


def test_names_that_a_disk_takes_for_one(refused, monkeypatch):
    joined = Path.joinpath
    monkeypatch.setattr(Path, "joinpath", lambda self, *a: joined(self, *map(str.lower, a)))
    refused(tar(("A", b"1"), ("a", b"2")), "member 'a' clashes with another member on this disk")
    refused(
        tar(("A/b", b"1"), ("a/c", b"2")), "member 'a/c' clashes with another member on this disk"
    )


def test_an_encrypted_zip_file(refused):
    data = bytearray(zipped(("secret", b"x")))
    for mark, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        data[data.index(mark) + flags] |= 1
    refused(bytes(data), "member 'secret' is encrypted")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_that_unpack_without_bounds(refused, method):
    refused(zipped(("a", b"x"), method=method), "not deflate")


# --- bombs --------------------------------------------------------------------------------------


@every_kind
def test_a_bomb_is_stopped_while_it_unpacks(refused, make, monkeypatch):
    written = []
    count = module._read

    def watch(name, opening):
        for data in count(name, opening):
            written.append(len(data))
            yield data

    monkeypatch.setattr(module, "_read", watch)
    data = make(("small", b"x"), ("bomb", bytes(20_000_000)))
    refused(data, "member 'bomb' goes beyond the 3,000,000 bytes", most_bytes=3_000_000)
    assert sum(written) <= 3_000_000


def test_a_zip_file_that_lies_about_its_sizes(refused):
    data = bytearray(zipped(("bomb", bytes(5_000_000))))
    struct.pack_into("<I", data, data.index(b"PK\1\2") + 24, 10)
    refused(bytes(data), "damaged|goes beyond", most_bytes=1000)


def test_overlapping_members_of_a_zip_file(refused):
    """Every entry of the directory names the same data: 50 times a megabyte."""
    one = zipped(("0000", bytes(1_000_000)))
    start = one.index(b"PK\1\2")
    end = one.index(b"PK\5\6")
    entries = b"".join(one[start:end].replace(b"0000", b"%04d" % i) for i in range(50))
    tail = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 50, 50, len(entries), start, 0)
    refused(one[:start] + entries + tail, "damaged|goes beyond", most_bytes=3_000_000)


@tar_and_zip
def test_too_many_members(refused, make):
    many = [(f"{i}", b"") for i in range(11)]
    refused(make(*many), "member '10' is more than the 10 files allowed", most_files=10)
    refused(make(("a/b/c/d", b"")), "more than the 3 files allowed", most_files=3)


def test_too_many_times_the_same_folder(refused):
    refused(tar(*[folder("a")] * 11), "more than the 10 files allowed", most_files=10)


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_a_header_of_any_size_is_not_read_into_memory(refused, kind):
    info = tarfile.TarInfo("header")
    info.type, info.size = kind, 1 << 33
    refused(
        gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(10_000)),
        "a header of 8,589,934,592 bytes",
    )


def test_the_stream_goes_forwards_only():
    stream = module._Stream(io.BytesIO(bytes(100)), 100)
    assert stream.seek(50) == 50
    with pytest.raises(tarfile.ReadError, match="backwards"):
        stream.seek(49)
    with pytest.raises(tarfile.ReadError, match="a header of -1 bytes"):
        stream.read(-1)


def test_headers_without_end(refused):
    info = tarfile.TarInfo("header")
    info.type, info.size = b"g", 500_000
    content = b"500000 comment=" + b"x" * (500_000 - 16) + b"\n"
    header = info.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512)
    refused(gzip.compress(header * 40), "more than|damaged", most_bytes=1000, most_files=10)


def test_headers_within_headers(refused):
    info = tarfile.TarInfo("header")
    info.type, info.size = b"L", 2
    header = info.tobuf() + b"ab" + bytes(510)
    refused(header * 3000 + bytes(1024), "damaged|more than")


@pytest.mark.parametrize("kind", [b"0", b"x", b"L", b"5"])
def test_a_negative_size_does_not_go_round_for_ever(refused, kind):
    info = tarfile.TarInfo("loop")
    info.type = kind
    data = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    data[124:136] = b"\xff" * 10 + struct.pack(">h", -512)  # base 256
    data[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(data))[0]
    refused(bytes(data) * 2 + bytes(1024), "negative size|damaged")


def test_a_sparse_file(refused):
    info = tarfile.TarInfo("sparse")
    info.type, info.size = tarfile.GNUTYPE_SPARSE, 0
    data = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    data[386:410] = b"%011o\0%011o\0" % (0, 0)
    data[483:495] = b"%011o\0" % (1 << 32)
    data[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(data))[0]
    refused(bytes(data) + bytes(1024), f"member 'sparse' {NEITHER}")


def test_zeros_without_end_behind_the_archive(refused):
    data = gzip.compress(tar(("a", b"x")) + bytes(20_000_000))
    refused(data, "unpacks to more than", most_bytes=1000, most_files=10)


# --- damage -------------------------------------------------------------------------------------


@pytest.mark.slow
@every_kind
def test_an_archive_that_is_cut_off_anywhere(refused, make):
    data = make(("a/b", b"1" * 700), ("c", b"2" * 100), ("d", b"3"))
    whole = len(data.rstrip(b"\0")) if data[:3] == b"a/b" else len(data)
    for n in sorted({*range(0, whole, max(1, whole // 60)), whole - 1}):
        refused(data[:n], "damaged|holds no files|end mark")


def test_a_tar_file_that_is_cut_off_between_two_members(refused):
    data = tar(("a", b"1"), ("b", b"2"))
    refused(data[:1024], "ends without its end mark")
    refused(data[:2048], "ends without its end mark")


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_compressed_file_that_is_cut_off_behind_the_last_member(refused, pack):
    data = pack(tar(("a", b"1")) + bytes(100_000))
    for n in (1, 5, 8):
        refused(data[:-n], "damaged")


def test_a_damaged_header_in_the_middle_is_not_the_end(refused):
    data = bytearray(tar(("a", b"1"), ("b", b"2"), ("c", b"3")))
    data[1024 + 3] ^= 1
    refused(bytes(data), "ends without its end mark")


@pytest.mark.parametrize("kind", ["tgz", "bz2", "xz", "zip", "stored"])
def test_a_flipped_bit_is_found(refused, kind):
    data = bytearray(KINDS[kind](("a", b"content of the only file")))
    data[len(data) // 2 if kind != "zip" else 40] ^= 4
    if kind == "stored":
        data = bytearray(KINDS[kind](("a", b"content"))).replace(b"content", b"contend")
    refused(bytes(data), "damaged|control|end mark|absolute|comes")


@pytest.mark.parametrize(
    "data", [b"", b"x", b"PK", b"text\n" * 1000, b"\x1f\x8b", b"BZh", bytes(512)]
)
def test_what_is_no_archive(refused, data):
    refused(data, "not an archive that can be read|holds no files")


@tar_and_zip
def test_an_archive_without_files(refused, make):
    refused(make(), "holds no files")
    refused(zipped(("a/", b"")) if make is zipped else tar(folder("a")), "holds no files")


# --- interruptions ------------------------------------------------------------------------------


def test_ctrl_c_leaves_nothing(open_up, tmp_path, monkeypatch):
    def interrupt(name, opening):
        yield b"half"
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_read", interrupt)
    with pytest.raises(KeyboardInterrupt):
        open_up(tar(*FILES.items()))
    assert {p.name for p in (tmp_path / "data").iterdir()} <= {".set.lock"}


SCRIPT = """
import sys
from pathlib import Path
import zoo.data.unpack as module
archive, into, ask = sys.argv[1:]
read = module._read
def slow(name, opening):
    for data in read(name, opening):
        yield data
        print("writing", flush=True)
        if ask == "ask":
            sys.stdin.readline()
module._read = slow
print(module.unpack(Path(archive), Path(into), most_bytes=10**7, most_files=100))
"""


def process(archive, into, ask="go on"):
    command = [sys.executable, "-c", SCRIPT, str(archive), str(into), ask]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="cannot be killed so")
def test_a_killed_process_leaves_no_target_and_the_next_one_clears_up(open_up, tmp_path):
    archive, target = tmp_path / "archive", tmp_path / "data" / "set"
    archive.write_bytes(tar(("junk", b"x"), ("more", b"x")))
    with process(archive, target, "ask") as running:
        assert running.stdout.readline() == "writing\n"
        running.send_signal(signal.SIGKILL)
        running.wait()
    assert not target.exists()
    assert (target.parent / ".set.half").is_dir()
    assert open_up(tar(*FILES.items())) == target
    assert everything(target) == FILES
    assert {p.name for p in target.parent.iterdir()} <= {"set", ".set.lock"}


@pytest.mark.slow
def test_two_processes_at_once(tmp_path):
    archive, target = tmp_path / "archive", tmp_path / "data" / "set"
    archive.write_bytes(tar(*FILES.items()))
    with process(archive, target, "ask") as first:
        assert first.stdout.readline() == "writing\n"
        with process(archive, target) as second:
            assert "waiting for another process that is writing it" in second.stderr.readline()
            assert not target.exists()
            first.communicate("\n" * 10, timeout=60)
            assert second.communicate(timeout=60)[0] == f"{target}\n"  # and wrote nothing
    assert [first.returncode, second.returncode] == [0, 0]
    assert everything(target) == FILES
