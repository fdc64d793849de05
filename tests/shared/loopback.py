"""A server on this machine that fails in every way servers do."""

from __future__ import annotations

import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Site:
    """What the server does; each list holds one entry a request, and its last one goes on."""

    def __init__(self, data=b""):
        self.data = [data]
        self.status = [200]
        self.breaks = [None]  # closes the connection after so many bytes of the body
        self.resets = False  # and does so rudely
        self.ranges = True
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
