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
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from rich.console import Console

import zoo._fetch as module
from zoo._fetch import Patience, Source, fetch
from zoo.errors import UserError
from zoo.progress import Reporter

DATA = random.Random(0).randbytes(300_000)
OTHER = random.Random(1).randbytes(300_000)
MD5 = hashlib.md5(DATA).hexdigest()
SHA256 = hashlib.sha256(DATA).hexdigest()
QUIET = Reporter(quiet=True)


class Site:
    """What the server does; each list holds one entry a request, and its last one goes on."""

    def __init__(self, data=DATA):
        self.data = [data]
        self.status = [200]
        self.breaks = [None]  # closes the connection after so many bytes of the body
        self.resets = False  # and does so rudely
        self.etag = ['"one"']
        self.modified = [None]
        self.ranges = True
        self.if_range = True
        self.length = "true"  # what Content-Length says
        self.chunked = False
        self.stalls = [0.0]
        self.location = None
        self.content_range = None  # a lie
        self.headers = {}
        self.log = []  # of each request its headers, and how many bytes of a body it got

    @property
    def requests(self):
        return [headers for headers, _ in self.log]

    @property
    def sent(self):
        return [sum(pieces) for _, pieces in self.log]

    def turn(self, values):
        return values[min(len(self.log) - 1, len(values) - 1)]


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        site = self.server.sites[self.path]
        self.pieces = []
        site.log.append((dict(self.headers.items()), self.pieces))
        data, status = site.turn(site.data), site.turn(site.status)
        etag, modified = site.turn(site.etag), site.turn(site.modified)
        start = self.start_of_range(site, {etag, modified})
        if status != 200:
            data = b"sorry"
        elif start is not None and start >= len(data):
            status, data = 416, b""
        elif start is not None:
            status = 206
        self.send_response(status)
        for name, value in {"ETag": etag, "Last-Modified": modified, **site.headers}.items():
            if value:
                self.send_header(name, value)
        if site.location:
            self.send_header("Location", site.location)
        if status == 206:
            said = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self.send_header("Content-Range", site.content_range or said)
            data = data[start:]
        if site.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        elif site.length:
            self.send_header("Content-Length", len(data) if site.length == "true" else site.length)
        self.end_headers()
        self.send_body(site, data)

    def start_of_range(self, site, validators):
        if not site.ranges or "Range" not in self.headers:
            return None
        if site.if_range and self.headers.get("If-Range", None) not in {None, *validators}:
            return None
        return int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))

    def send_body(self, site, data):
        end, stall = site.turn(site.breaks), site.turn(site.stalls)
        data = data[:end]
        half = len(data) // 2 if stall else len(data)
        for piece in (data[:half], data[half:]):
            self.pieces.append(len(piece))
            try:
                self.send_piece(site, piece)
            except OSError:  # the other side has gone
                break
            if stall and piece is not data:
                self.server.gone.wait(stall)
        if site.chunked and end is None:
            self.wfile.write(b"0\r\n\r\n")
        if site.resets:
            self.server.reset(self.connection)
        self.close_connection = True

    def send_piece(self, site, piece):
        if site.chunked and piece:
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        else:
            self.wfile.write(piece)
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    protocol_version = "HTTP/1.1"
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.sites, self.gone = {}, threading.Event()

    def add(self, path, site=None):
        self.sites[path] = site or Site()
        return self.sites[path], f"http://127.0.0.1:{self.server_port}{path}"

    def vanish(self):
        self.shutdown()
        self.server_close()

    @staticmethod
    def reset(connection):
        import socket
        import struct

        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    def handle_error(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.gone.set()
    server.vanish()
    thread.join()


@pytest.fixture
def site(server):
    return server.add("/set.tgz")[0]


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
        source = Source(urls or (url,), "set.tgz", **{"md5": MD5, "size": len(DATA)} | more)
        patience = Patience(timeout=timeout, tries=3, wait=1.0, sleep=naps.append)
        return fetch(source, tmp_path / "data", reporter, patience=patience)

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
    with pytest.raises(UserError, match=f"broke off at {n:,} of"):
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
    assert "is not the file it should be" in message
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
    with pytest.raises(UserError, match="is not the file it should be"):
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
    assert site.requests[1]["If-Range"] == '"one"'
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
    with pytest.raises(UserError, match="broke off at 50,000 of 300,000 bytes .tried 3 times"):
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


@pytest.mark.parametrize("note", [None, b"", b"[]", b'{"url": 1}', b"[" * 100_000, b"\xff"])
def test_a_part_with_a_damaged_note_goes_on_all_the_same(get, site, part, note):
    begin(get, site)
    part.with_name(part.name + ".json").unlink()
    if note is not None:
        part.with_name(part.name + ".json").write_bytes(note)
    assert get().read_bytes() == DATA
    assert site.sent == [200_000]
    assert "If-Range" not in site.requests[0]


def test_a_part_that_is_complete_needs_no_server(get, site, part):
    part.parent.mkdir()
    part.write_bytes(DATA)
    assert get().read_bytes() == DATA
    assert site.requests == []


@pytest.mark.parametrize("size", [None, len(DATA)])
@pytest.mark.parametrize("n", [10, 300_000, 300_001])
def test_a_part_of_another_file_is_dropped_in_the_end(get, site, part, n, size):
    part.parent.mkdir()
    part.write_bytes((OTHER + OTHER)[:n])
    assert get(size=size).read_bytes() == DATA
    assert site.sent[-1] == 300_000


def test_a_complete_part_is_known_by_its_note(get, site, part, monkeypatch):
    def stop(self, path):
        raise KeyboardInterrupt

    monkeypatch.setattr(module._Part, "finish", stop)
    with pytest.raises(KeyboardInterrupt):
        get(size=None)
    monkeypatch.undo()
    assert get(size=None).read_bytes() == DATA
    assert len(site.requests) == 1


# --- a server that changes its file -------------------------------------------------------------


@pytest.mark.parametrize("if_range", [True, False])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"etag": '"old"'}, {"etag": '"new"'}),
        ({"etag": 'W/"old"'}, {"etag": 'W/"new"'}),
        (
            {"etag": None, "modified": "Mon, 01 Jan 2024 00:00:00 GMT"},
            {"etag": None, "modified": "Tue, 02 Jan 2024 00:00:00 GMT"},
        ),
    ],
)
def test_a_file_that_changed_is_fetched_from_its_beginning(
    get, site, before, after, if_range, monkeypatch
):
    begins = []
    monkeypatch.setattr(module._Meter, "begin", lambda self, done, total: begins.append(done))
    site.if_range = if_range
    site.data, site.breaks = [OTHER, DATA], [100_000, None]
    for name in before:
        setattr(site, name, [before[name], after[name]])
    assert get().read_bytes() == DATA
    assert site.sent[-1] == 300_000
    assert begins == [0, 0]  # nothing of the new one was appended to the old one
    weak = "W/" in str(before)  # such a tag may not stand in If-Range
    assert ("If-Range" in site.requests[1]) is not weak
    assert len(site.requests) == (2 if if_range and not weak else 3)


def test_a_file_that_changed_in_size(get, site):
    site.data, site.breaks, site.etag = [OTHER[:200_000], DATA], [100_000, None], [None]
    with pytest.raises(UserError, match="offers 200,000 bytes, expected 300,000"):
        get()
    site.log.clear()
    assert get(size=None).read_bytes() == DATA


def test_a_file_that_changed_unnoticed_is_found_by_its_digest(get, site):
    site.data, site.breaks, site.etag = [OTHER, DATA], [100_000, None], [None]
    assert get().read_bytes() == DATA
    assert site.sent == [100_000, 200_000, 300_000]


def test_a_file_that_shrank_answers_416(get, site):
    site.data, site.etag = [OTHER, DATA[:50_000]], [None]
    site.breaks = [100_000, None]
    path = get(size=None, md5=hashlib.md5(DATA[:50_000]).hexdigest())
    assert path.read_bytes() == DATA[:50_000]
    assert site.sent == [100_000, 0, 50_000]


@pytest.mark.parametrize(
    "lie", ["bytes 0-299999/300000", "bytes 100000-299999/300001", "nonsense", "bytes 1e5-/*"]
)
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
    with pytest.raises(UserError, match="more than can be right"):
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
    with pytest.raises(UserError, match="sends more than 300,000 bytes"):
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
    source = Source((url,), "set.tgz", MD5, size=len(DATA))
    patience = Patience(5.0, 3, sleep=lambda _: server.vanish())
    with pytest.raises(UserError, match=r"(?s)refused.*first 100,000 bytes are kept"):
        fetch(source, part.parent, QUIET, patience=patience)


def test_a_failing_address_gives_way_to_the_next(get, server, site, url, part):
    dead, dead_url = server.add("/dead")
    dead.breaks = [100_000, 0]
    gone, gone_url = server.add("/gone")
    gone.status = [404]
    site.etag = ['"of the other mirror"']
    assert get(gone_url, dead_url, url).read_bytes() == DATA
    assert site.requests[0]["Range"] == "bytes=100000-"
    assert "If-Range" not in site.requests[0]
    assert site.sent == [200_000]


def test_a_wrong_mirror_gives_way_to_the_next(get, server, url):
    wrong, wrong_url = server.add("/wrong", Site(OTHER))
    assert get(wrong_url, url).read_bytes() == DATA
    assert wrong.sent == [300_000]


def test_when_all_fail_the_message_says_how_to_go_on(get, server, site, url, part):
    gone, gone_url = server.add("/gone")
    gone.status = [404]
    site.breaks = [100_000, 0]
    with pytest.raises(UserError) as caught:
        get(gone_url, url)
    lines = str(caught.value).splitlines()
    assert lines == [
        "set.tgz could not be downloaded",
        f"  {gone_url}: answered 404 Not Found",
        f"  {url}: broke off at 100,000 of 300,000 bytes (tried 3 times)",
        "  get it by other means:",
        "    file      set.tgz, 300,000 bytes",
        f"    md5       {MD5}",
        f"    put it in {part.parent}",
        "  or run again later: its first 100,000 bytes are kept in set.tgz.part",
    ]


# --- redirections -------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirection_is_followed_and_resumed_through(get, server, site, url, status):
    moved, moved_url = server.add("/moved")
    moved.status, moved.location, moved.etag = [status], url, [None]
    site.breaks = [100_000, None]
    assert get(moved_url).read_bytes() == DATA
    assert site.sent == [100_000, 200_000]


def test_the_page_of_a_redirection_is_not_waited_for(get, server, url, naps):
    moved, moved_url = server.add("/moved")
    moved.status, moved.location, moved.stalls = [302], url, [60.0]
    assert get(moved_url, timeout=1.0).read_bytes() == DATA
    assert naps == []


def test_a_loop_of_redirections(get, site, url):
    site.status, site.location = [302], url
    with pytest.raises(UserError, match="infinite loop"):
        get()


@pytest.mark.parametrize(
    "to",
    ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x", "http://[x", "http://h:x/"],
)
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


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\\b", "c:a", "a\n", "a\0", " "])
def test_a_file_name_that_leads_elsewhere(tmp_path, name):
    with pytest.raises(UserError, match="not a plain file name"):
        fetch(Source(("http://h/x",), name, MD5), tmp_path)


@pytest.mark.parametrize(
    "digests", [{"md5": None}, {"md5": ""}, {"md5": MD5[1:]}, {"md5": "g" * 32}, {"sha256": MD5}]
)
def test_digests_that_are_none(get, site, digests):
    with pytest.raises(UserError, match=r"to check it by|hex digits"):
        get(**digests)
    assert site.requests == []


def test_no_address_at_all(tmp_path):
    with pytest.raises(UserError, match="no address"):
        fetch(Source((), "a", MD5), tmp_path)


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
        fetch(Source((url,), "a", MD5), tmp_path / "a\0b", QUIET)


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
    assert visible(part.parent) == ["set.tgz.part", "set.tgz.part.json"]
    assert get().read_bytes() == DATA
    if n < len(DATA):
        assert site.requests[1]["Range"] == f"bytes={n}-"


SCRIPT = """
import sys
from pathlib import Path
from zoo._fetch import Source, fetch
url, folder, md5 = sys.argv[1:]
print("ready", flush=True)
print(fetch(Source((url,), "set.tgz", md5), Path(folder)))
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


def test_two_processes_at_once_fetch_it_once(site, url, server, part):
    site.stalls = [60.0]  # ended by the event below
    with process(url, part.parent) as first:
        wait_until(lambda: site.requests)
        with process(url, part.parent) as second:
            assert "another process is at it" in second.stderr.readline()
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
    expected = "set.tgz: broke off at 100,000 of 300,000 bytes; trying again in 1 s\n"
    assert out.getvalue() == expected


def test_on_a_terminal_there_is_a_bar(get, site):
    out = io.StringIO()
    site.stalls = [0.5]
    get(reporter=Reporter(Console(file=out, force_terminal=True, width=120)))
    assert "set.tgz" in out.getvalue()
    assert "300.0/300.0 kB" in out.getvalue()
