"""Downloads from a server on this machine that fails in every way servers do."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from loopback import Server, Site
from rich.console import Console

from zoo.base import Source
from zoo.data import download as module
from zoo.data.download import Patience, UnreachableError, fetch
from zoo.errors import UserError
from zoo.progress import Reporter

DATA = random.Random(0).randbytes(300_000)
OTHER = random.Random(1).randbytes(300_000)
MD5 = hashlib.md5(DATA).hexdigest()
SHA256 = hashlib.sha256(DATA).hexdigest()
QUIET = Reporter(quiet=True)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    server.run()
    yield server
    server.stop()


@pytest.fixture
def site(server):
    return server.add("/set.tgz", Site(DATA))[0]


@pytest.fixture
def url(server, site):
    return f"http://127.0.0.1:{server.server_port}/set.tgz"


@pytest.fixture
def naps():
    return []


@pytest.fixture
def get(url, tmp_path, naps):
    """Return the function that fetches with little patience."""

    def get(*urls, reporter=QUIET, timeout=5.0, **more):
        source = Source("set.tgz", urls or (url,), **{"md5": MD5, "size": len(DATA)} | more)
        patience = Patience(timeout=timeout, tries=3, wait=1.0, sleep=naps.append)
        return fetch(source, tmp_path / "data", reporter, patience)

    return get


@pytest.fixture
def part(tmp_path):
    return tmp_path / "data" / "set.tgz.part"


def visible(folder):
    return sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))


def begin(get, site, n=100_000):
    """Leave a part of n bytes behind, as a run does that gave up."""
    breaks, site.breaks = site.breaks, [n, 0]
    ranges, site.ranges = site.ranges, True
    with pytest.raises(UserError, match=f"stopped at {n:,} of"):
        get()
    site.breaks, site.ranges = breaks, ranges
    site.log.clear()


# --- the whole file -----------------------------------------------------------------------------


def test_a_file_is_fetched_whole_and_nothing_else_is_left(get, site, tmp_path, naps):
    path = get()
    assert path == tmp_path / "data" / "set.tgz"
    assert path.read_bytes() == DATA
    assert visible(path.parent) == ["set.tgz"]
    assert len(site.requests) == 1
    assert "Range" not in site.requests[0]
    assert naps == []


@pytest.mark.parametrize(
    "digests",
    [{"md5": MD5.upper()}, {"md5": None, "sha256": SHA256}, {"md5": MD5, "sha256": SHA256}],
)
@pytest.mark.parametrize("size", [None, len(DATA)])
def test_each_kind_of_digest_will_do(get, digests, size):
    assert get(size=size, **digests).read_bytes() == DATA


@pytest.mark.parametrize("size", [None, len(DATA)])
@pytest.mark.parametrize("chunked", [True, False])
def test_the_server_need_not_say_the_length(get, site, size, chunked):
    site.chunked, site.length = chunked, None
    assert get(size=size).read_bytes() == DATA


def test_a_length_beside_chunks_is_not_heeded(get, site):
    site.chunked, site.headers = True, {"Content-Length": "5"}
    assert get().read_bytes() == DATA


def test_an_empty_file(get, site):
    site.data = [b""]
    assert get(md5=hashlib.md5(b"").hexdigest(), size=0).read_bytes() == b""


def test_the_label_of_a_tgz_as_gzip_encoded_means_nothing(get, site):
    site.headers = {"Content-Encoding": "x-gzip"}
    assert get().read_bytes() == DATA


def test_a_complete_file_is_not_fetched_again(get, site):
    path = get()
    before = path.stat().st_mtime_ns
    assert get() == path
    assert len(site.requests) == 1
    assert path.stat().st_mtime_ns == before


def test_a_complete_file_in_a_folder_that_takes_no_lock(get, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "set.tgz").write_bytes(DATA)
    get()
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["set.tgz"]


def test_another_file_in_its_place_is_left_alone(get, site, tmp_path):
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "set.tgz"
    path.write_bytes(b"mine")
    with pytest.raises(UserError) as caught:
        get()
    message = str(caught.value)
    assert "exists, but is not the right file" in message
    assert f"md5 {hashlib.md5(b'mine').hexdigest()}, expected {MD5}" in message
    assert "4 bytes, expected 300,000" in message
    assert "delete it" in message
    assert path.read_bytes() == b"mine"
    assert site.requests == []


def test_a_folder_in_its_place(get, tmp_path):
    (tmp_path / "data" / "set.tgz").mkdir(parents=True)
    with pytest.raises(UserError, match="cannot be read"):
        get()


def test_a_file_put_there_by_hand_meanwhile_is_not_overwritten(get, tmp_path, part, monkeypatch):
    def put(self, done):
        (tmp_path / "data" / "set.tgz").write_bytes(b"mine")

    monkeypatch.setattr(module._Meter, "show", put)
    with pytest.raises(UserError, match="exists, but is not the right file"):
        get()
    assert (tmp_path / "data" / "set.tgz").read_bytes() == b"mine"
    monkeypatch.undo()
    (tmp_path / "data" / "set.tgz").unlink()
    assert get().read_bytes() == DATA  # of the part that was kept


# --- broken downloads ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [None, len(DATA)])
@pytest.mark.parametrize("chunked", [True, False])
def test_a_broken_download_goes_on_with_the_rest_only(get, site, naps, chunked, size):
    site.breaks, site.chunked = [100_000, None], chunked
    assert get(size=size).read_bytes() == DATA
    assert [r.get("Range") for r in site.requests] == [None, "bytes=100000-"]
    assert site.sent == [100_000, 200_000]
    assert naps == [1.0]


def test_another_run_goes_on_with_the_rest_only(get, site, part):
    begin(get, site)
    assert part.read_bytes() == DATA[:100_000]
    assert get().read_bytes() == DATA
    assert [r.get("Range") for r in site.requests] == ["bytes=100000-"]
    assert site.sent == [200_000]
    assert visible(part.parent) == ["set.tgz"]


def test_a_try_that_brings_something_is_not_counted(get, site, naps):
    site.breaks = [50_000]
    assert get().read_bytes() == DATA
    assert site.sent == [50_000] * 6
    assert naps == [1.0] * 5


def test_a_server_that_sends_the_same_beginning_for_ever_is_given_up(get, site, naps):
    site.breaks, site.ranges = [50_000], False
    with pytest.raises(UserError, match="stopped at 50,000 of 300,000 bytes .tried 3 times"):
        get()
    assert len(site.requests) == 3
    assert naps == [1.0, 2.0]


def test_what_was_there_before_is_nothing_new(get, site):
    site.breaks, site.ranges = [50_000, 40_000, 50_000], False
    with pytest.raises(UserError, match="tried 3 times"):
        get()
    assert len(site.requests) == 3


def test_a_server_without_ranges_starts_over(get, site, part):
    begin(get, site)
    site.ranges = False
    assert get().read_bytes() == DATA
    assert site.sent == [300_000]


def test_a_connection_that_is_reset(get, site):
    site.breaks, site.resets = [100_000, None], True
    assert get().read_bytes() == DATA


@pytest.mark.parametrize("size", [None, len(DATA)])
def test_a_part_that_is_complete_needs_no_server(get, site, part, size):
    part.parent.mkdir()
    part.write_bytes(DATA)
    assert get(size=size).read_bytes() == DATA
    assert site.requests == []


@pytest.mark.parametrize("size", [None, len(DATA)])
@pytest.mark.parametrize("n", [10, 300_000, 300_001])
def test_a_part_of_another_file_is_dropped_in_the_end(get, site, part, n, size):
    part.parent.mkdir()
    part.write_bytes((OTHER + OTHER)[:n])
    assert get(size=size).read_bytes() == DATA
    assert site.sent[-1] == 300_000


# --- a server that changes its file -------------------------------------------------------------


def test_a_file_that_changed_in_size(get, site):
    site.data, site.breaks = [OTHER[:200_000], DATA], [100_000, None]
    with pytest.raises(UserError, match="offers 200,000 bytes, expected 300,000"):
        get()
    site.log.clear()
    assert get(size=None).read_bytes() == DATA


def test_a_file_that_changed_is_found_by_its_digest(get, site):
    site.data, site.breaks = [OTHER, DATA], [100_000, None]
    assert get().read_bytes() == DATA
    assert site.sent == [100_000, 200_000, 300_000]


def test_a_file_that_shrank_answers_416(get, site):
    site.data = [OTHER, DATA[:50_000]]
    site.breaks = [100_000, None]
    path = get(size=None, md5=hashlib.md5(DATA[:50_000]).hexdigest())
    assert path.read_bytes() == DATA[:50_000]
    assert site.sent == [100_000, 0, 50_000]


@pytest.mark.parametrize("lie", ["bytes 0-299999/300000", "nonsense", "bytes 1e5-/*"])
def test_an_answer_with_another_range_is_not_appended(get, site, lie):
    site.breaks, site.content_range = [100_000, None], lie
    assert get().read_bytes() == DATA
    assert site.sent[-1] == 300_000


# --- wrong files --------------------------------------------------------------------------------


def test_another_file_is_refused_and_the_part_removed(get, site, part):
    site.data = [OTHER]
    with pytest.raises(UserError) as caught:
        get()
    found = hashlib.md5(OTHER).hexdigest()
    assert f"md5 {found}, expected {MD5}; 300,000 bytes, expected 300,000" in str(caught.value)
    assert visible(part.parent) == []
    assert len(site.requests) == 1


def test_the_second_digest_counts_too(get):
    with pytest.raises(UserError, match=f"sha256 {SHA256}, expected {'0' * 64}"):
        get(sha256="0" * 64)


@pytest.mark.parametrize("declared", [True, False])
def test_a_file_of_another_size_is_refused(get, site, part, declared):
    site.length = "true" if declared else None
    with pytest.raises(UserError, match=r"300,000|299,999"):
        get(size=299_999)
    assert visible(part.parent) == []


def test_a_web_page_is_called_so(get, site):
    site.data, site.headers = [b"<html>log in</html>"], {"Content-Type": "text/html; charset=x"}
    with pytest.raises(UserError, match=r"offers 19 bytes \(a web page\), expected 300,000"):
        get()


def test_a_length_beyond_all_bounds_is_refused(get, site):
    site.length = str(1 << 41)
    with pytest.raises(UserError, match="and the disk has"):
        get(size=None)
    with pytest.raises(UserError, match="expected 300,000"):
        get()


@pytest.mark.parametrize("length", ["-1", "1e9", "9" * 5000])
def test_a_length_that_is_no_number_counts_as_none(get, site, length):
    site.length = length
    assert get().read_bytes() == DATA


def test_a_length_that_promises_too_much(get, site):
    site.length = "400000"
    with pytest.raises(UserError, match="of 400,000 bytes"):
        get(size=None)


def test_a_length_that_promises_too_little(get, site, part):
    site.length = "200000"
    with pytest.raises(UserError, match="200,000 bytes"):
        get(size=None)
    assert visible(part.parent) == []


@pytest.mark.parametrize("chunked", [True, False])
def test_a_server_that_never_ends(get, site, part, chunked):
    site.data, site.length, site.chunked = [DATA + OTHER], None, chunked
    with pytest.raises(UserError, match="sent more than 300,000 bytes"):
        get()
    assert visible(part.parent) == []


# --- servers that fail --------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 501])
def test_a_refusal_is_final(get, site, status):
    site.status = [status]
    with pytest.raises(UserError, match=f"answered {status} "):
        get()
    assert len(site.requests) == 1


@pytest.mark.parametrize("status", [204, 206, 203])
def test_an_answer_that_is_no_file(get, site, status):
    site.status = [status]
    with pytest.raises(UserError, match=f"answered {status} "):
        get()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_passing_failure_is_tried_again(get, site, naps, status):
    site.status = [status, status, 200]
    assert get().read_bytes() == DATA
    assert naps == [1.0, 2.0]


def test_a_lasting_failure_is_given_up(get, site, naps):
    site.status = [500]
    with pytest.raises(UserError, match="answered 500 .*tried 3 times"):
        get()
    assert len(site.requests) == 3
    assert naps == [1.0, 2.0]


def test_a_failure_in_between_keeps_the_part(get, site):
    site.breaks, site.status = [100_000, None], [200, 500, 200]
    assert get().read_bytes() == DATA
    assert site.sent == [100_000, 5, 200_000]


def test_a_server_that_stalls(get, site):
    site.stalls = [30.0, 0.0]
    assert get(timeout=0.3).read_bytes() == DATA
    assert site.requests[1]["Range"] == "bytes=150000-"


def test_a_server_that_always_stalls(get, site, naps):
    site.stalls = [30.0]
    site.ranges = False
    with pytest.raises(UserError, match=r"sent nothing for 0.2 s \(tried 3 times\)"):
        get(timeout=0.2)
    assert naps == [1.0, 2.0]


def test_a_server_that_is_not_there(get, naps):
    server = Server()
    server.server_close()
    with pytest.raises(UserError, match=r"Connection refused.*tried 3 times"):
        get(f"http://127.0.0.1:{server.server_port}/x")
    assert naps == [1.0, 2.0]


def test_a_server_that_vanishes_for_good(url, server, site, part):
    site.breaks = [100_000]
    source = Source("set.tgz", (url,), MD5, size=len(DATA))
    patience = Patience(5.0, 3, sleep=lambda _: server.vanish())
    with pytest.raises(UserError, match=r"(?s)refused.*first 100,000 bytes are kept"):
        fetch(source, part.parent, QUIET, patience)


def test_a_failing_address_gives_way_to_the_next(get, server, site, url, part):
    dead, dead_url = server.add("/dead", Site(DATA))
    dead.breaks = [100_000, 0]
    gone, gone_url = server.add("/gone", Site(DATA))
    gone.status = [404]
    assert get(gone_url, dead_url, url).read_bytes() == DATA
    assert site.requests[0]["Range"] == "bytes=100000-"
    assert site.sent == [200_000]


def test_a_wrong_mirror_gives_way_to_the_next(get, server, url):
    wrong, wrong_url = server.add("/wrong", Site(OTHER))
    assert get(wrong_url, url).read_bytes() == DATA
    assert wrong.sent == [300_000]


def test_when_all_fail_the_message_says_how_to_go_on(get, server, site, url, part):
    gone, gone_url = server.add("/gone", Site(DATA))
    gone.status = [404]
    site.breaks = [100_000, 0]
    with pytest.raises(UserError) as caught:
        get(gone_url, url)
    lines = str(caught.value).splitlines()
    assert lines == [
        "set.tgz could not be downloaded",
        f"  {gone_url}: answered 404 Not Found",
        f"  {url}: stopped at 100,000 of 300,000 bytes (tried 3 times)",
        f"  get it by other means: set.tgz (300,000 bytes, MD5 {MD5})",
        f"  and put it in {part.parent}",
        "  or run again later: its first 100,000 bytes are kept in set.tgz.part",
    ]


# --- what is there already is worth more than what a server says ---------------------------------


PAGE = {"Content-Type": "text/html"}


@pytest.mark.parametrize("size", [None, len(DATA)])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_web_page_instead_of_the_rest_keeps_the_part(get, site, part, size, chunked):
    begin(get, site)
    site.data, site.ranges, site.headers, site.chunked = [b"<p>log in"], False, PAGE, chunked
    with pytest.raises(UserError, match="(?s)a web page.*100,000 bytes are kept"):
        get(size=size)
    assert part.read_bytes() == DATA[:100_000]


@pytest.mark.parametrize("status", [416, 200])
def test_another_size_instead_of_the_rest_keeps_the_part(get, site, part, status):
    begin(get, site)
    site.data, site.ranges = [DATA[:50_000]], status == 416
    with pytest.raises(UserError, match="has only 100,000|offers 50,000 bytes"):
        get()
    assert part.read_bytes() == DATA[:100_000]


def test_what_a_server_says_cannot_steer_a_terminal(get, site, monkeypatch):
    site.status = [404]
    monkeypatch.setattr(
        "loopback.Handler.responses", {404: ("\x1b[2JGone\x07" + "x" * 999, "")}, raising=False
    )
    with pytest.raises(UserError) as caught:
        get()
    assert "\x1b" not in str(caught.value)
    assert r"answered 404 \x1b[2JGone\x07xxx" in str(caught.value)
    assert len(str(caught.value)) < 600


# --- redirections -------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307])
def test_a_redirection_is_followed_and_resumed_through(get, server, site, url, status):
    moved, moved_url = server.add("/moved", Site(DATA))
    moved.status, moved.location = [status], url
    site.breaks = [100_000, None]
    assert get(moved_url).read_bytes() == DATA
    assert site.sent == [100_000, 200_000]


def test_a_loop_of_redirections(get, site, url):
    site.status, site.location = [302], url
    with pytest.raises(UserError, match="infinite loop"):
        get()


@pytest.mark.parametrize("to", ["file:///etc/passwd", "data:,x", "http://[x"])
def test_a_redirection_to_anything_but_the_web(get, site, to, naps):
    site.status, site.location = [302], to
    with pytest.raises(UserError, match="set.tgz could not be downloaded"):
        get()
    assert naps == []
    assert len(site.requests) == 1


# --- sources ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    ["file:///etc/passwd", "ftp://host/x", "/etc/passwd", "", "http://", "http://h/a b", "http://[",
     "http://h/\n", "http://h:99999/", "HTTP", "http://h/ü"],
)  # fmt: skip
def test_an_address_that_is_not_of_the_web(get, url, site, bad):
    with pytest.raises(UserError, match="http:// or https://"):
        get(url, bad)
    assert site.requests == []


def test_a_source_without_a_digest(get, site):
    with pytest.raises(UserError, match="has neither md5 nor sha256 to verify it with"):
        get(md5=None)
    assert site.requests == []


def test_no_address_at_all(tmp_path):
    with pytest.raises(UnreachableError) as caught:
        fetch(Source("a", md5=MD5), tmp_path, QUIET)
    assert str(caught.value).splitlines() == [
        "a could not be downloaded",
        "  no known address has it any more",
        f"  get it by other means: a (MD5 {MD5})",
        f"  and put it in {tmp_path}",
    ]


# --- the disk -----------------------------------------------------------------------------------


def test_a_disk_without_room_is_found_before_the_download(get, site, part, monkeypatch):
    free = shutil._ntuple_diskusage(1 << 40, 1 << 40, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    with pytest.raises(UserError, match="needs 300,000 bytes, and the disk has 1,000 left"):
        get()
    assert visible(part.parent) == []


def test_a_disk_that_fills_up_keeps_the_part(get, site, part, monkeypatch, naps):
    write, room = module._Part.write, [200_000]

    def fill(self, data):
        room[0] -= len(data)
        if room[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, data)

    monkeypatch.setattr(module._Part, "write", fill)
    site.breaks = [100_000, None]
    with pytest.raises(UserError, match=r"set.tgz.part: no room left on the disk") as caught:
        get()
    assert "\n" not in str(caught.value)
    monkeypatch.undo()
    assert part.stat().st_size >= 100_000
    assert get().read_bytes() == DATA


def test_a_folder_that_cannot_be_made(get, site, tmp_path):
    (tmp_path / "data").write_text("in the way")
    with pytest.raises(UserError, match="cannot be written"):
        get()
    assert site.requests == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_a_folder_that_may_not_be_written(get, tmp_path):
    (tmp_path / "data").mkdir(mode=0o500)
    with pytest.raises(UserError, match="cannot be written"):
        get()


def test_a_folder_in_the_place_of_the_part(get, part):
    part.mkdir(parents=True)
    with pytest.raises(UserError, match="cannot be written"):
        get()


def test_a_null_byte_in_the_folder(tmp_path, url):
    with pytest.raises(UserError, match="cannot be written"):
        fetch(Source("a", (url,), MD5), tmp_path / "a\0b", QUIET)


# --- interruptions ------------------------------------------------------------------------------


def test_ctrl_c_keeps_the_part(get, site, part, monkeypatch):
    def interrupt(self, done):
        raise KeyboardInterrupt

    monkeypatch.setattr(module._Meter, "show", interrupt)
    with pytest.raises(KeyboardInterrupt):
        get()
    monkeypatch.undo()
    n = part.stat().st_size
    assert n > 0
    assert part.read_bytes() == DATA[:n]
    assert visible(part.parent) == ["set.tgz.part"]
    assert get().read_bytes() == DATA
    if n < len(DATA):
        assert site.requests[1]["Range"] == f"bytes={n}-"


SCRIPT = """
import sys
from pathlib import Path
from zoo.data.download import fetch
from zoo.base import Source
url, folder, md5 = sys.argv[1:]
print("ready", flush=True)
print(fetch(Source("set.tgz", (url,), md5), Path(folder)))
"""


@contextmanager
def process(url, folder):
    command = [sys.executable, "-c", SCRIPT, url, str(folder), MD5]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def wait_until(true):
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end, "waited for 30 s"
        time.sleep(0.02)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="cannot be killed so")
def test_a_killed_process_is_resumed(get, site, url, part):
    site.stalls = [60.0, 0.0]
    with process(url, part.parent) as running:
        wait_until(lambda: part.exists() and part.stat().st_size >= 100_000)
        running.send_signal(signal.SIGKILL)
        running.wait()
    n = part.stat().st_size
    assert part.read_bytes() == DATA[:n]
    assert not (part.parent / "set.tgz").exists()
    assert get().read_bytes() == DATA
    assert site.requests[1]["Range"] == f"bytes={n}-"
    assert site.sent[1] == len(DATA) - n


@pytest.mark.slow
def test_two_processes_at_once_fetch_it_once(site, url, server, part):
    site.stalls = [60.0]  # ended by the event below
    with process(url, part.parent) as first:
        wait_until(lambda: site.requests)
        with process(url, part.parent) as second:
            assert "waiting for another process that is writing it" in second.stderr.readline()
            server.gone.set()
            for running in (first, second):
                out, _ = running.communicate(timeout=60)
                assert running.returncode == 0
                assert out.split()[1] == str(part.parent / "set.tgz")
    assert (part.parent / "set.tgz").read_bytes() == DATA
    assert len(site.requests) == 1


# --- what is shown ------------------------------------------------------------------------------


def test_off_a_terminal_only_troubles_are_told(get, site):
    out = io.StringIO()
    reporter = Reporter(Console(file=out, force_terminal=False, width=200))
    site.breaks = [100_000, None]
    get(reporter=reporter)
    expected = "set.tgz: stopped at 100,000 of 300,000 bytes; trying again in 1 s\n"
    assert out.getvalue() == expected


def test_on_a_terminal_there_is_a_bar(get, site):
    out = io.StringIO()
    site.stalls = [0.5]
    get(reporter=Reporter(Console(file=out, force_terminal=True, width=120)))
    assert "set.tgz" in out.getvalue()
    assert "300.0/300.0 kB" in out.getvalue()
