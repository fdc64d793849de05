"""A local server that fails in all the ways that servers fail."""

from __future__ import annotations

import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Site:
    """How the server answers; each list has an entry for each request, and its last one repeats."""

    def __init__(self, data=b""):
        self.data = [data]
        self.status = [200]
        self.breaks = [None]  # close the connection after this many bytes of the body
        self.resets = False  # close it by a reset
        self.ranges = True
        self.length = "true"  # the Content-Length; "true" is the right one
        self.chunked = False
        self.stalls = [0.0]
        self.location = None
        self.content_range = None  # a wrong one to send
        self.headers = {}
        self.log = []  # for each request, its headers and the sizes of the pieces sent

    @property
    def requests(self):
        return [headers for headers, _ in self.log]

    @property
    def sent(self):
        return [sum(pieces) for _, pieces in self.log]

    def current(self, values):
        """Return the entry of a list for the current request."""
        return values[min(len(self.log) - 1, len(values) - 1)]


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        site = self.server.sites[self.path]
        self.pieces = []
        site.log.append((dict(self.headers.items()), self.pieces))
        data, status = site.current(site.data), site.current(site.status)
        start = self.start_of_range(site)
        if status != 200:
            data = b"sorry"
        elif start is not None and start >= len(data):
            status, data = 416, b""
        elif start is not None:
            status = 206
        self.send_response(status)
        for name, value in site.headers.items():
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

    def start_of_range(self, site):
        if not site.ranges or "Range" not in self.headers:
            return None
        return int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))

    def send_body(self, site, data):
        end, stall = site.current(site.breaks), site.current(site.stalls)
        data = data[:end]
        half = len(data) // 2 if stall else len(data)
        for piece in (data[:half], data[half:]):
            self.pieces.append(len(piece))
            try:
                self.send_piece(site, piece)
            except OSError:  # the client has gone
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

    def run(self):
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self.thread.start()

    def stop(self):
        self.gone.set()
        self.vanish()
        self.thread.join()

    def vanish(self):
        self.shutdown()
        self.server_close()

    @staticmethod
    def reset(connection):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    def handle_error(self, *_):
        pass
