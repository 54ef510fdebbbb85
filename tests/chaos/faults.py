"""A proxy in front of S3 that breaks what it is told to break, and counts how often it really did.

It reads HTTP/1.1 requests one by one and passes them on as they are (so that signatures stay right), unless a fault
matches: by method, by key, by a header, by chance from a seed. Faults are switched from the test's thread.
"""

import asyncio
import collections
import dataclasses
import random
import re
import socket
import struct
import threading


@dataclasses.dataclass
class Fault:
    """What happens to a request.

    answer      it is not passed on, and answered with `status` and `code`
    lost_reply  it is passed on; where that created something, the connection is reset instead of answered
    cut_request half of the body is passed on, then both connections are reset
    cut_answer  half of the answer's body is passed back, then the connection is reset
    refuse      the connection is reset before anything is read of the body
    hold        it waits until the faults are over and is delivered then, whether its sender still waits or not
    hold_reply  it is passed on; the answer waits until the faults are over
    """

    act: str
    status: int = 0
    code: str = ""
    message: str = "by order of the test"
    html: bool = False
    methods: str = "GET HEAD PUT"
    key: str = ""  # a regular expression, searched for in the path
    header: str = ""  # only requests that have it
    probability: float = 1.0
    once: bool = False
    hit: threading.Event = dataclasses.field(default_factory=threading.Event)

    @property
    def name(self):
        return f"{self.status} {self.code}".strip() if self.act == "answer" else self.act


class Proxy:
    def __init__(self, endpoint, seed=0):
        host, port = endpoint.split("://")[1].split(":")
        self.target = (host, int(port))
        self.chance = random.Random(seed)
        self.fired = collections.Counter()
        self.faults = []
        self.loop = asyncio.new_event_loop()
        started = threading.Event()
        threading.Thread(target=self._run, args=(started,), daemon=True).start()
        started.wait()
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def on(self, *faults):
        def switch():
            self.calm.clear()
            self.faults = list(faults)

        self._call(switch)

    def off(self):
        def switch():
            self.faults = []
            self.calm.set()

        self._call(switch)

    def _call(self, function):
        done = threading.Event()
        self.loop.call_soon_threadsafe(lambda: (function(), done.set()))
        done.wait()

    def _run(self, started):
        asyncio.set_event_loop(self.loop)

        async def serve():
            self.calm = asyncio.Event()
            self.calm.set()
            server = await asyncio.start_server(self._client, "127.0.0.1", 0, limit=1 << 20)
            self.port = server.sockets[0].getsockname()[1]
            started.set()
            await server.serve_forever()

        self.loop.run_until_complete(serve())

    def _draw(self, method, path, headers):
        for fault in self.faults:
            if (
                method in fault.methods.split()
                and re.search(fault.key, path)
                and (not fault.header or fault.header in headers)
                and self.chance.random() < fault.probability
            ):
                if fault.once:
                    self.faults.remove(fault)
                return fault
        return None

    def _count(self, fault, what=""):
        self.fired[fault.name + what] += 1
        fault.hit.set()

    async def _client(self, reader, writer):
        upstream = []
        try:
            while await self._request(reader, writer, upstream):
                pass
        except (OSError, asyncio.IncompleteReadError, ValueError):
            pass
        finally:
            for w in [writer, *(w for _, w in upstream)]:
                w.close()

    async def _request(self, reader, writer, upstream):
        """Serves one request; whether another may follow."""
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        method, path, _ = lines[0].split(" ", 2)
        headers = headers_of(lines)
        length = int(headers.get("content-length", 0))
        fault = self._draw(method, path, headers)
        act = fault.act if fault else ""
        if act == "refuse":
            self._count(fault)
            return reset(writer)
        if act == "cut_request" and length > 1:
            half = await reader.readexactly(length // 2)
            server = await self._upstream(upstream)
            server[1].write(head + half)
            await server[1].drain()
            await asyncio.sleep(0.01)
            self._count(fault)
            reset(server[1])
            return reset(writer)
        body = await reader.readexactly(length)
        if act == "answer":
            self._count(fault)
            writer.write(refusal(fault, method))
            await writer.drain()
            return True
        if act == "hold":
            self._count(fault)
            await self.calm.wait()
            if writer.is_closing() or reader.at_eof():
                self._count(fault, ", delivered after its sender had gone")
        server = await self._upstream(upstream)
        server[1].write(head + body)
        await server[1].drain()
        status, answer, answer_body = await response(server[0], method)
        if act == "lost_reply" and 200 <= status < 300:
            self._count(fault)
            return reset(writer)
        if act == "cut_answer" and len(answer_body) > 1:
            self._count(fault)
            writer.write(answer + answer_body[: len(answer_body) // 2])
            await writer.drain()
            return reset(writer)
        if act == "hold_reply":
            self._count(fault)
            await self.calm.wait()
        writer.write(answer + answer_body)
        await writer.drain()
        return True

    async def _upstream(self, upstream):
        if not upstream:
            upstream.append(await asyncio.open_connection(*self.target, limit=1 << 20))
        return upstream[0]


def headers_of(lines):
    return {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}


async def response(reader, method):
    """Status, head and body, all as they came."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        status = int(lines[0].split(" ")[1])
        if status >= 200:
            break
    headers = headers_of(lines)
    body = b""
    if method == "HEAD" or status in (204, 304):
        pass
    elif headers.get("transfer-encoding", "").lower() == "chunked":
        while True:
            size = await reader.readuntil(b"\r\n")
            chunk = await reader.readexactly(int(size.split(b";")[0], 16) + 2)
            body += size + chunk
            if chunk == b"\r\n":
                break
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return status, head, body


def refusal(fault, method):
    if fault.html:
        kind, body = "text/html", f"<html><body><h1>{fault.status} {fault.code}</h1></body></html>"
    else:
        kind = "application/xml"
        body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{fault.code}</Code><Message>{fault.message}</Message></Error>'
    head = f"HTTP/1.1 {fault.status} Told\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + ("" if method == "HEAD" else body)).encode()


def reset(writer):
    """A reset instead of an orderly end; False, as no request can follow."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False
