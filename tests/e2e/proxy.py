"""A TCP proxy in front of the store that can be told to stall: bytes stop, connections stay. Another one counts."""

import collections
import re
import socket
import threading
import urllib.parse


class Proxy:
    def __init__(self, host, port):
        self.target = (host, port)
        self.flowing = threading.Event()
        self.flowing.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def stall(self):
        self.flowing.clear()

    def flow(self):
        self.flowing.set()

    def saw(self, connection, request, data):
        """Bytes of a request, or of the answer, before they go on. `connection`: a dict of the connection's own."""

    def _accept(self):
        while True:
            client, _ = self.listener.accept()
            try:
                server = socket.create_connection(self.target)
            except OSError:
                client.close()
                continue
            connection = {}
            for a, b in ((client, server), (server, client)):
                threading.Thread(target=self._copy, args=(a, b, connection, a is client), daemon=True).start()

    def _copy(self, source, sink, connection, request):
        try:
            while data := source.recv(262144):
                self.flowing.wait()
                self.saw(connection, request, data)
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for s in (source, sink):
                try:
                    s.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass


class Counter(Proxy):
    """Counts HTTP requests, and the bytes of requests and answers: by method, and the first folder below the archive.

    Good enough for requests whose bodies are binary or JSON.
    """

    HEAD = re.compile(rb"(GET|PUT|HEAD|POST|DELETE) (\S+) HTTP/1")

    def __init__(self, host, port, archive):
        super().__init__(host, port)
        self.below = archive.removeprefix("s3:/") + "/"
        self.lock, self.requests, self.bytes = threading.Lock(), collections.Counter(), collections.Counter()

    def saw(self, connection, request, data):
        if request and (head := self.HEAD.match(data)):
            connection["kind"] = self.kind(*(part.decode("latin-1") for part in head.groups()))
            with self.lock:
                self.requests[connection["kind"]] += 1
        with self.lock:
            self.bytes[connection.get("kind", "?")] += len(data)

    def kind(self, method, target):
        path, _, query = target.partition("?")
        path, asked = urllib.parse.unquote(path), urllib.parse.parse_qs(query)
        if "list-type" in asked:
            method, path = "LIST", path.rstrip("/") + "/" + asked.get("prefix", [""])[0]
        return f"{method} {path.removeprefix(self.below).partition('/')[0]}"

    def taken(self):
        """Requests and bytes since the last call, by kind."""
        with self.lock:
            taken = dict(self.requests), dict(self.bytes)
            self.requests, self.bytes = collections.Counter(), collections.Counter()
            return taken
