"""Large files from strangers' servers: resumed, checked, and in place whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPMessage, HTTPResponse
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, cast
from urllib.parse import urlsplit

from filelock import FileLock, Timeout
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from zoo._files import replace_file
from zoo.errors import UserError
from zoo.progress import Reporter

_CHUNK = 1 << 20
_MOST_UNDECLARED = 1 << 40  # bytes accepted where the source does not say how many there are
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})  # answers that may be others in a moment
_HEX = {"md5": 32, "sha256": 64}


class Source(NamedTuple):
    """A file that somebody else serves, and how to know it.

    Attributes:
        urls: addresses, http or https, tried in this order.
        filename: its name in our folder.
        md5: hexadecimal digest; this or ``sha256`` is needed, and all that are given are checked.
        sha256: hexadecimal digest.
        size: bytes.
    """

    urls: tuple[str, ...]
    filename: str
    md5: str | None = None
    sha256: str | None = None
    size: int | None = None


class Patience(NamedTuple):
    """How long to put up with a bad connection.

    Attributes:
        timeout: seconds without a byte.
        tries: of one address; one that brings something new is the first again.
        wait: seconds before the second try; doubles from then on.
        sleep: does the waiting.
    """

    timeout: float = 30.0
    tries: int = 4
    wait: float = 1.0
    sleep: Callable[[float], object] = time.sleep


_PATIENCE = Patience()


def fetch(
    source: Source,
    folder: Path,
    reporter: Reporter | None = None,
    *,
    patience: Patience = _PATIENCE,
) -> Path:
    """Return ``folder / source.filename``, downloaded unless it is there already.

    The download grows in ``<filename>.part`` and gets its name after its size and digest have been
    checked. Whatever ends it before, the next call goes on where it ended, if the server can and
    still has the same file. A second process waits for the first.

    Args:
        source: what to get, and from where.
        folder: made if need be.
        reporter: shows a bar of bytes, speed and time left if it writes to a terminal.
        patience: with the servers.

    Raises:
        UserError: the source is not described properly; the file that is there is another one (it
            is left alone); the disk cannot take it; no address has it, and then the message says
            why each failed and which file to put where.
    """
    reporter = reporter or Reporter()
    _check_source(source)
    path = folder / source.filename
    if os.path.lexists(path):  # before the lock, which a folder of somebody else's may not take
        return _checked(path, source)
    with alone(path, reporter):
        if os.path.lexists(path):
            return _checked(path, source)
        part = path.with_name(path.name + ".part")
        try:
            with _Part(part, source) as file, _open_meter(reporter, path.name) as meter:
                _download(source, file, _Session(meter, reporter, patience))
                if os.path.lexists(path):  # put there by hand meanwhile
                    _checked(path, source)
                file.finish(path)
        except OSError as error:
            raise cannot_write(part, error) from error
    return path


@contextmanager
def alone(path: Path, reporter: Reporter) -> Iterator[None]:
    """Make the folder of ``path``, and keep every other process from making ``path`` meanwhile.

    Waits for a process that is at it. The empty lock file ``.<name>.lock`` is left behind: to
    remove it would let two processes in.

    Raises:
        UserError: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(f".{path.name}.lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            reporter.say(f"{path}: another process is at it; waiting for that")
            lock.acquire()
    except (OSError, ValueError, NotImplementedError) as error:  # a null byte; no locks there
        raise cannot_write(path, error) from error
    try:
        yield
    finally:
        lock.release()


def cannot_write(path: Path, error: Exception) -> UserError:
    """Return in one message why the disk did not take a file or folder."""
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return UserError(f"{path}: no room left on the disk; make room and run again")
    return UserError(f"{str(path)!r}: cannot be written ({getattr(error, 'strerror', 0) or error})")


def _check_source(source: Source) -> None:
    if not source.urls:
        raise UserError(f"{source.filename!r}: no address to get it from")
    for url in source.urls:
        if not _is_web_address(url):
            raise UserError(f"{url!r}: not an address that begins with http:// or https://")
    name = source.filename
    if not re.fullmatch(r"[^/\\:]+", name) or name.strip(". ") == "" or not name.isprintable():
        raise UserError(f"{name!r}: not a plain file name")
    if not _digests(source):
        raise UserError(f"{name}: no md5 and no sha256 to check it by")
    for kind, digest in _digests(source).items():
        if not re.fullmatch(rf"[0-9a-f]{{{_HEX[kind]}}}", digest):
            raise UserError(f"{name}: {digest!r} is no {kind}, which has {_HEX[kind]} hex digits")


def _is_web_address(url: str) -> bool:
    try:
        split = urlsplit(url)
        valid = split.scheme in ("http", "https") and bool(split.hostname) and split.port != 0
    except ValueError:
        return False
    return valid and url.isascii() and url.isprintable() and " " not in url


def _digests(source: Source) -> dict[str, str]:
    given = {"md5": source.md5, "sha256": source.sha256}
    return {kind: digest.lower() for kind, digest in given.items() if digest is not None}


class _Hashes:
    """The digests of a growing file, and whether they are those of the source."""

    def __init__(self, source: Source) -> None:
        self.expected, self.expected_size = _digests(source), source.size
        self.size = 0
        # not for security: builds of Python for FIPS have no MD5 otherwise
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
    """Return the complete file that is there already.

    Raises:
        UserError: it is another one.
    """
    hashes = _Hashes(source)
    try:
        with path.open("rb") as file:
            hashes.read(file)
    except OSError as error:
        raise UserError(f"{path}: is there, but cannot be read ({error.strerror})") from error
    fault = hashes.fault()
    if fault:
        raise UserError(
            f"{path}: is there, but is not the file it should be\n"
            f"  {fault}\n"
            "  move it away or delete it, and run again to download the right one"
        )
    return path


class _Origin(NamedTuple):
    """Where the first bytes of a part came from, to tell whether the rest still fits."""

    url: str
    etag: str | None
    modified: str | None
    total: int | None


class _Part:
    """The file under way, with the digests of what it holds and a note of where that is from."""

    def __init__(self, path: Path, source: Source) -> None:
        self.path, self.source = path, source
        self.note = path.with_name(path.name + ".json")
        self.file = path.open("a+b")
        self.origin = _read_note(self.note)
        self.hashes = _Hashes(source)
        try:
            self.file.seek(0)
            self.hashes.read(self.file)
        except BaseException:
            self.file.close()
            raise
        self.pieced = False  # whether it is put together from several answers

    def __enter__(self) -> _Part:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        if self.size == 0:
            self._unlink()

    @property
    def size(self) -> int:
        return self.hashes.size

    @property
    def total(self) -> int | None:
        """The size of the complete file, as far as it is known."""
        if self.source.size is not None:
            return self.source.size
        return self.origin.total if self.origin and self.size else None

    def begin(self, origin: _Origin) -> None:
        """Take note of an answer, which continues what is there."""
        self.pieced = self.size > 0
        if not self.pieced:
            self.origin = origin
            text = json.dumps(origin._asdict()).encode()
            replace_file(self.note, lambda file: file.write(text))

    def write(self, data: bytes) -> None:
        self.file.write(data)
        self.hashes.update(data)

    def restart(self) -> None:
        """Drop what is there."""
        self.file.truncate(0)
        self.origin, self.pieced, self.hashes = None, False, _Hashes(self.source)

    def finish(self, path: Path) -> None:
        """Flush the file to the disk and give it its name."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        self.path.replace(path)
        self._unlink()

    def _unlink(self) -> None:
        self.path.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)


def _read_note(path: Path) -> _Origin | None:
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):  # none, or damaged: the digest decides
        return None
    if not isinstance(values, dict) or set(values) != set(_Origin._fields):
        return None
    kinds: dict[str, Any] = {"url": str, "total": int | None}
    if all(isinstance(v, kinds.get(name, str | None)) for name, v in values.items()):
        return _Origin(**values)
    return None


class _Meter:
    """A bar of bytes, speed and time left."""

    def __init__(self, bar: Progress, title: str) -> None:
        self.bar = bar
        self.task = bar.add_task(title, total=None)

    def begin(self, done: int, total: int | None) -> None:
        # not an update: what an earlier try has brought would count as the speed of this one
        self.bar.reset(self.task, completed=done, total=total)

    def show(self, done: int) -> None:
        self.bar.update(self.task, completed=done)


@contextmanager
def _open_meter(reporter: Reporter, title: str) -> Iterator[_Meter]:
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
        console=reporter.console,
        transient=True,
        disable=not reporter.live,
    ) as bar:
        yield _Meter(bar, title)


class _Session(NamedTuple):
    meter: _Meter
    reporter: Reporter
    patience: Patience


class _HopelessError(Exception):
    """An address has nothing for us."""


class _BrokenError(Exception):
    """A connection failed; another may not."""


class _StaleError(Exception):
    """The server's file is not the one that the part was begun from."""


def _download(source: Source, part: _Part, session: _Session) -> None:
    """Complete the part from the first address that can.

    Raises:
        UserError: none can.
        OSError: the disk does not take it.
    """
    reasons = []
    for url in source.urls:
        try:
            _Address(url, part, session).fetch()
            return
        except _HopelessError as error:
            reasons.append(f"  {url}: {error}")
    raise UserError(
        "\n".join([f"{source.filename} could not be downloaded", *reasons, *_way(part)])
    )


def _way(part: _Part) -> list[str]:
    """Return the lines that say how to go on by hand."""
    source = part.source
    size = "" if source.size is None else f", {source.size:,} bytes"
    lines = ["  get it by other means:", f"    file      {source.filename}{size}"]
    lines += [f"    {kind:<9} {digest}" for kind, digest in _digests(source).items()]
    lines.append(f"    put it in {part.path.parent.absolute()}")
    if part.size:
        kept = f"its first {part.size:,} bytes are kept in {part.path.name}"
        lines.append(f"  or run again later: {kept}")
    return lines


class _Address:
    """One address of a source, and the part that it is to complete."""

    def __init__(self, url: str, part: _Part, session: _Session) -> None:
        self.url, self.part = url, part
        self.meter, self.reporter, self.patience = session

    def fetch(self) -> None:
        """Complete the part and check it; a wrong one is dropped.

        Raises:
            _HopelessError: this address cannot.
        """
        self._complete()
        if self.part.hashes.fault() and self.part.pieced:
            self.part.restart()  # the pieces may be of different files: once more, from one
            self._complete()
        fault = self.part.hashes.fault()
        if fault:
            self.part.restart()
            raise _HopelessError(f"sent another file: {fault}")

    def _complete(self) -> None:
        """Try until the part is complete; the count of tries begins again with whatever is new."""
        tries, most = 0, self.part.size
        while True:
            try:
                self._try()
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

    def _try(self) -> None:
        part = self.part
        if part.size and part.size == part.total:
            part.pieced = True  # all there from an earlier run
            return
        try:
            response = self._resume() if part.size else self._ask(0)
        except _StaleError:
            part.restart()
            response = self._ask(0)
        with response:
            self._receive(response)

    def _resume(self) -> HTTPResponse:
        response = self._ask(self.part.size)
        if response.status == 206 and not self._continues(response.headers):
            response.close()
            raise _StaleError
        if response.status == 200:  # cannot resume, or has another file now
            self.part.restart()
        return response

    def _continues(self, headers: HTTPMessage) -> bool:
        """Say whether an answer goes on where the part ends, with the same file."""
        start, total = _content_range(headers)
        if start != self.part.size:
            return False
        if None not in (total, self.part.total) and total != self.part.total:
            return False
        origin = self.part.origin
        if origin is None or origin.url != self.url:  # another mirror: only the digest can tell
            return True
        if origin.etag and headers.get("ETag"):
            return origin.etag == headers["ETag"]
        return not origin.modified or headers.get("Last-Modified") in (None, origin.modified)

    def _receive(self, response: HTTPResponse) -> None:
        """Append the answer to the part."""
        part = self.part
        if response.status != (206 if part.size else 200):
            raise _HopelessError(f"answered {response.status} {response.reason}")
        length = _length(response)
        total = _content_range(response.headers)[1] if part.size else length
        self._check_total(total, response.headers)
        validators = (response.headers.get("ETag"), response.headers.get("Last-Modified"))
        part.begin(_Origin(self.url, *validators, total))
        self.meter.begin(part.size, part.total if total is None else total)
        most = next((n for n in (total, part.source.size) if n is not None), _MOST_UNDECLARED)
        for data in self._pieces(response):
            if part.size + len(data) > most:
                part.restart()
                raise _HopelessError(f"sends more than {most:,} bytes")
            part.write(data)
            self.meter.show(part.size)
        expected = part.total if total is None else total
        if expected is not None and part.size < expected:
            raise _BrokenError(f"broke off at {part.size:,} of {expected:,} bytes")

    def _check_total(self, total: int | None, headers: HTTPMessage) -> None:
        """Refuse a file that cannot be the right one, or for which there is no room."""
        expected = self.part.source.size
        if total is None:
            return
        page = " (a web page)" if "html" in headers.get("Content-Type", "") else ""
        if expected is not None and total != expected:
            raise _HopelessError(f"offers {total:,} bytes{page}, expected {expected:,}")
        if total > _MOST_UNDECLARED:
            raise _HopelessError(f"offers {total:,} bytes{page}, more than can be right")
        free = shutil.disk_usage(self.part.path.parent).free
        if total - self.part.size > free:
            raise UserError(
                f"{self.part.path}: needs {total - self.part.size:,} bytes, and the disk has "
                f"{free:,} left; make room, or choose another folder"
            )

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
        request = urllib.request.Request(self.url, headers=self._headers(start))
        try:
            # of http and https only, so always of this type
            return cast(HTTPResponse, _opener().open(request, timeout=self.patience.timeout))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and start:
                raise _StaleError from error
            kind = _BrokenError if error.code in _PASSING else _HopelessError
            raise kind(f"answered {error.code} {' '.join(str(error.reason).split())}") from error
        except (OSError, HTTPException) as error:
            raise self._broken(error) from error
        except ValueError as error:  # redirected to what is no address
            raise _HopelessError(str(error)) from error

    def _headers(self, start: int) -> dict[str, str]:
        # http.client adds Accept-Encoding: identity. Servers that call a .tgz gzip-encoded all the
        # same mean the file itself, so Content-Encoding is not heeded.
        headers = {"User-Agent": "metric-zoo"}
        if start:
            headers["Range"] = f"bytes={start}-"
            origin = self.part.origin
            if origin and origin.url == self.url:
                # a weak tag (RFC 9110, 13.1.5) may not stand here
                tag = origin.etag if origin.etag and origin.etag.startswith('"') else None
                if tag or origin.modified:
                    headers["If-Range"] = tag or origin.modified or ""
        return headers

    def _broken(self, error: Exception) -> Exception:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _HopelessError(f"has a bad certificate ({cause.verify_message})")
        if isinstance(cause, TimeoutError):
            return _BrokenError(f"sent nothing for {self.patience.timeout:g} s")
        reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        return _BrokenError(f"connection failed, {reason}")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections, a limited number of them, to http and https only."""

    http_error_308 = urllib.request.HTTPRedirectHandler.http_error_302  # Python 3.10 knows no 308

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        fp.close()  # else the base class reads it to its end, which may never come
        if not _is_web_address(newurl.replace(" ", "%20")):
            raise _HopelessError(f"redirects to {newurl!r}, not an address of http or https")
        code = 307 if code == 308 else code
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener of http and https; the usual one opens files as well."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
        _Redirects,
    ):
        opener.add_handler(handler())
    return opener


def _length(response: HTTPResponse) -> int | None:
    """Return how many bytes the answer says it has."""
    if response.chunked:  # of which Content-Length would be no part, RFC 9112, 6.3
        return None
    text = response.headers.get("Content-Length", "").strip()
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def _content_range(headers: HTTPMessage) -> tuple[int | None, int | None]:
    """Return the position of the first byte and the size of the whole file, None if not said."""
    found = re.fullmatch(
        r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18}|\*)",
        headers.get("Content-Range", "").strip(),
    )
    if found is None:
        return None, None
    return int(found[1]), None if found[2] == "*" else int(found[2])
