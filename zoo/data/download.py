"""Downloads of large files: resumed, verified, and in place only when complete."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.parse import urlsplit

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from zoo.base import Source
from zoo.errors import UserError
from zoo.progress import Reporter
from zoo.support.files import alone, open_regular, writing
from zoo.support.text import printable

_CHUNK = 1 << 20
_MOST_UNDECLARED = 1 << 40  # bytes accepted if the size of the source is not known
_TEMPORARY = frozenset({408, 425, 429, 500, 502, 503, 504})  # statuses for which to try again


class UnreachableError(UserError):
    """No address has the file; the message says why each failed, and where to put the file."""


class Patience(NamedTuple):
    """How long to tolerate a bad connection."""

    timeout: float = 30.0  # seconds without a byte
    tries: int = 4  # per address; the count starts again whenever new bytes have arrived
    wait: float = 1.0  # seconds before the second try; doubles from then on
    sleep: Callable[[float], object] = time.sleep  # the function that waits


PATIENCE = Patience()


def fetch(
    source: Source,
    folder: Path,
    reporter: Reporter | None = None,
    patience: Patience | None = None,
) -> Path:
    """Return ``folder / source.filename``, downloaded unless it exists already.

    The download is written to ``<filename>.part`` and renamed after its size and digest have been
    checked. If it is interrupted, the next call resumes it, if the server supports that. A second
    process waits for the first.

    Args:
        source: what to download, and from where.
        folder: created if needed.
        reporter: shows a bar of bytes, speed and time left if it writes to a terminal.
        patience: with the servers; ``PATIENCE`` by default.

    Raises:
        UnreachableError: no address has it.
        UserError: an address is not valid; a different file is already there (it is left alone);
            the disk cannot hold the file.
    """
    reporter = reporter or Reporter()
    _check_source(source)
    path = folder / source.filename
    if os.path.lexists(path):  # before the lock, which a read-only folder does not allow
        return _checked(path, source)
    with alone(path, reporter):
        if os.path.lexists(path):
            return _checked(path, source)
        part = path.with_name(path.name + ".part")
        with writing(part), _Part(part, source) as file, _open_meter(reporter, path.name) as meter:
            if file.fault() is not None:
                _download(source, file, _Session(meter, reporter, patience or PATIENCE))
            if os.path.lexists(path):  # put there by hand in the meantime
                _checked(path, source)
            file.finish(path)
    return path


def _check_source(source: Source) -> None:
    for url in source.urls:
        if not _is_web_address(url):
            raise UserError(f"{url!r}: not an address that begins with http:// or https://")
    if not source.digests():
        raise UserError(f"{source.filename}: has neither md5 nor sha256 to verify it with")


def _is_web_address(url: str) -> bool:
    try:
        split = urlsplit(url)
        valid = split.scheme in ("http", "https") and bool(split.hostname) and split.port != 0
    except ValueError:
        return False
    return valid and url.isascii() and url.isprintable() and " " not in url


class _Hashes:
    """The digests of a growing file, compared with those of the source."""

    def __init__(self, source: Source) -> None:
        given = {"md5": source.md5, "sha256": source.sha256}
        self.expected = {kind: digest.lower() for kind, digest in given.items() if digest}
        self.expected_size = source.size
        self.size = 0
        # Not for security: FIPS builds of Python offer MD5 only with that flag.
        self.running = {kind: hashlib.new(kind, usedforsecurity=False) for kind in self.expected}

    def update(self, data: bytes) -> None:
        self.size += len(data)
        for running in self.running.values():
            running.update(data)

    def read(self, file: BinaryIO) -> None:
        while data := file.read(_CHUNK):
            self.update(data)

    def fault(self) -> str | None:
        """Return how the file differs from the expected one."""
        wrong_size = self.expected_size is not None and self.size != self.expected_size
        found = {kind: running.hexdigest() for kind, running in self.running.items()}
        if found == self.expected and not wrong_size:
            return None
        says = [f"{kind} {found[kind]}, expected {self.expected[kind]}" for kind in found]
        expected = "" if self.expected_size is None else f", expected {self.expected_size:,}"
        return "; ".join([*says, f"{self.size:,} bytes{expected}"])


def _checked(path: Path, source: Source) -> Path:
    """Return the existing file if it is the right one; else raise a UserError."""
    hashes = _Hashes(source)
    try:
        with open_regular(path) as file:
            hashes.read(file)
    except OSError as error:
        raise UserError(f"{path}: exists, but cannot be read ({error.strerror})") from error
    fault = hashes.fault()
    if fault:
        raise UserError(
            f"{path}: exists, but is not the right file\n"
            f"  {fault}\n"
            "  move it away or delete it, and run again to download the right one"
        )
    return path


class _Part:
    """The incomplete file, with the digests of its content."""

    def __init__(self, path: Path, source: Source) -> None:
        self.path, self.source = path, source
        self.file = path.open("a+b")
        self.hashes = _Hashes(source)
        try:
            self.file.seek(0)
            self.hashes.read(self.file)
        except BaseException:
            self.file.close()
            raise
        self.pieced = self.size > 0  # whether it consists of several answers

    def __enter__(self) -> _Part:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        if self.size == 0:
            self.path.unlink(missing_ok=True)

    @property
    def size(self) -> int:
        return self.hashes.size

    def fault(self) -> str | None:
        return self.hashes.fault()

    def write(self, data: bytes) -> None:
        self.file.write(data)
        self.hashes.update(data)

    def restart(self) -> None:
        """Delete its content."""
        self.file.truncate(0)
        self.pieced, self.hashes = False, _Hashes(self.source)

    def finish(self, path: Path) -> None:
        """Flush the file to the disk and give it its name."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        self.path.replace(path)


class _Meter:
    """A bar of bytes, speed and time left."""

    def __init__(self, bar: Progress, title: str) -> None:
        self.bar = bar
        self.task = bar.add_task(title, total=None)

    def start(self, done: int, total: int | None) -> None:
        # Not an update: bytes of an earlier try would count towards the speed of this one.
        self.bar.reset(self.task, completed=done, total=total)

    def show(self, done: int) -> None:
        self.bar.update(self.task, completed=done)


@contextmanager
def _open_meter(reporter: Reporter, title: str) -> Iterator[_Meter]:
    with reporter.bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    ) as bar:
        yield _Meter(bar, title)


class _Session(NamedTuple):
    meter: _Meter
    reporter: Reporter
    patience: Patience


class _HopelessError(Exception):
    """An address cannot provide the file."""


class _BrokenError(Exception):
    """A connection failed; another try may succeed."""


def _download(source: Source, part: _Part, session: _Session) -> None:
    """Complete the part from the first address that works; raise UnreachableError if none does."""
    reasons = []
    for url in source.urls:
        try:
            _Address(url, part, session).fetch()
            return
        except _HopelessError as error:
            reasons.append(f"  {url}: {error}")
    if not reasons:
        reasons = ["  no known address has it any more"]
    title = f"{source.filename} could not be downloaded"
    raise UnreachableError("\n".join([title, *reasons, *_advice(part)]))


def _advice(part: _Part) -> list[str]:
    """Return the lines that say how to get the file by hand."""
    source = part.source
    lines = [f"  get it by other means: {source}", f"  and put it in {part.path.parent.absolute()}"]
    if part.size:
        kept = f"its first {part.size:,} bytes are kept in {part.path.name}"
        lines.append(f"  or run again later: {kept}")
    return lines


class _Address:
    """One address of a source, and the part to be completed from it."""

    def __init__(self, url: str, part: _Part, session: _Session) -> None:
        self.url, self.part = url, part
        self.meter, self.reporter, self.patience = session

    def fetch(self) -> None:
        """Complete the part and verify it; delete a wrong one and raise a _HopelessError."""
        self._complete()
        if self.part.fault() and self.part.pieced:
            self.part.restart()  # the pieces may be of different files: try once more in one piece
            self._complete()
        fault = self.part.fault()
        if fault:
            self.part.restart()
            raise _HopelessError(f"sent a different file: {fault}")

    def _complete(self) -> None:
        """Try until the part is complete; new bytes reset the count of tries."""
        tries, most = 0, self.part.size
        while True:
            try:
                self._receive(self._ask_for_rest())
                return
            except _BrokenError as error:
                tries = 1 if self.part.size > most else tries + 1
                most = max(most, self.part.size)
                if tries >= self.patience.tries:
                    raise _HopelessError(f"{error} (tried {tries} times)") from error
                wait = self.patience.wait * 2 ** (tries - 1)
                name = self.part.source.filename
                self.reporter.say(f"{name}: {error}; trying again in {wait:g} s")
                self.patience.sleep(wait)

    def _ask_for_rest(self) -> HTTPResponse:
        """Return an answer that continues where the part ends; if need be, restart the part."""
        part = self.part
        if part.source.size is not None and part.size >= part.source.size:
            part.restart()  # it is wrong, or it would have been finished
        if part.size:
            response = self._ask(part.size)
            if response.status == 206 and _content_range(response)[0] == part.size:
                part.pieced = True
                return response
            if response.status == 200:  # the server cannot resume
                self._check_offer(_length(response), response)  # before the part is deleted
                part.restart()
                return response
            response.close()
            part.restart()
        return self._ask(0)

    def _receive(self, response: HTTPResponse) -> None:
        """Append the answer to the part."""
        part = self.part
        with response:
            if response.status != (206 if part.size else 200):
                raise _HopelessError(f"answered {response.status} {_in_short(response.reason)}")
            total = _content_range(response)[1] if part.size else _length(response)
            self._check_total(total, response)
            total = part.source.size if total is None else total
            self.meter.start(part.size, total)
            most = _MOST_UNDECLARED if total is None else total
            for data in self._pieces(response):
                if part.size + len(data) > most:
                    part.restart()
                    raise _HopelessError(f"sent more than {most:,} bytes")
                part.write(data)
                self.meter.show(part.size)
        if total is not None and part.size < total:
            raise _BrokenError(f"stopped at {part.size:,} of {total:,} bytes")

    def _check_total(self, total: int | None, response: HTTPResponse) -> None:
        """Refuse a file that cannot be the right one, or does not fit on the disk."""
        self._check_offer(total, response)
        if total is None:
            return
        free = shutil.disk_usage(self.part.path.parent).free
        if total - self.part.size > free:
            raise UserError(
                f"{self.part.path}: needs {total - self.part.size:,} bytes, and the disk has "
                f"{free:,} left; make room, or choose another folder"
            )

    def _check_offer(self, total: int | None, response: HTTPResponse) -> None:
        """Refuse a file that cannot be the right one."""
        expected = self.part.source.size
        page = " (a web page)" if "html" in response.headers.get("Content-Type", "") else ""
        if None not in (total, expected) and total != expected:
            raise _HopelessError(f"offers {total:,} bytes{page}, expected {expected:,}")
        if page and not self.part.source.filename.endswith((".html", ".htm")):
            raise _HopelessError("offers a web page")

    def _pieces(self, response: HTTPResponse) -> Iterator[bytes]:
        while True:
            try:
                data = response.read1(_CHUNK)
            except (OSError, HTTPException) as error:
                raise self._broken(error) from error
            if not data:
                return
            yield data

    def _ask(self, start: int) -> HTTPResponse:
        """Return the server's answer to the request for everything from ``start`` on."""
        # http.client adds Accept-Encoding: identity. Servers that still call a .tgz gzip-encoded
        # mean the file itself, so Content-Encoding is ignored.
        headers = {"User-Agent": "metric-zoo"}
        if start:
            headers["Range"] = f"bytes={start}-"
        request = urllib.request.Request(self.url, headers=headers)
        try:
            response = urllib.request.urlopen(request, timeout=self.patience.timeout)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and start:
                if self.part.source.size is not None:  # we need more than it has
                    raise _HopelessError(f"has only {start:,} bytes") from error
                self.part.restart()
                return self._ask(0)
            kind = _BrokenError if error.code in _TEMPORARY else _HopelessError
            raise kind(f"answered {error.code} {_in_short(error.reason)}") from error
        except (OSError, HTTPException) as error:
            raise self._broken(error) from error
        except ValueError as error:  # redirected to something that is not an address
            raise _HopelessError(_in_short(error)) from error
        if not isinstance(response, HTTPResponse):  # urllib also follows redirects to ftp
            response.close()
            raise _HopelessError(f"redirects to {response.url!r}, which is not a web address")
        return response

    def _broken(self, error: Exception) -> Exception:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _HopelessError(f"has a bad certificate ({cause.verify_message})")
        if isinstance(cause, TimeoutError):
            return _BrokenError(f"sent nothing for {self.patience.timeout:g} s")
        reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        return _BrokenError(f"connection failed, {_in_short(reason)}")


def _in_short(said: object) -> str:
    """Return a server's text as one line that cannot control a terminal."""
    return printable(" ".join(str(said).split()))[:200]


def _length(response: HTTPResponse) -> int | None:
    """Return the length in bytes that an answer declares."""
    if response.chunked:  # then Content-Length does not count: RFC 9112, 6.3
        return None
    text = response.headers.get("Content-Length", "").strip()
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def _content_range(response: HTTPResponse) -> tuple[int | None, int | None]:
    """Return the position of the first byte and the size of the whole file; None if not given."""
    found = re.fullmatch(
        r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18}|\*)",
        response.headers.get("Content-Range", "").strip(),
    )
    if found is None:
        return None, None
    return int(found[1]), None if found[2] == "*" else int(found[2])
