"""Asks a server without a pause by several connections, each in a thread, and checks each byte of what comes back.

load.py PROTOCOL ADDRESS PORT CONNECTIONS SECONDS, where PROTOCOL is http, redis, memcached or echo. Threads ask for so many seconds, and at
least five times each.
"""

import random
import select
import socket
import sys
import threading
import time

PROTOCOL, ADDRESS, PORT, CONNECTIONS, SECONDS = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
LIMIT = 60
LEAST = 5
counts = {"requests": 0, "bytes": 0}
lock = threading.Lock()
failures = []


class Connection:
    """A connection with what has been read of it and not been used."""

    def __init__(self):
        self.socket = socket.create_connection((ADDRESS, PORT), timeout=LIMIT)
        self.rest = b""

    def send(self, data):
        self.socket.sendall(data)

    def more(self):
        part = self.socket.recv(65536)
        assert part, f"the server ends the connection behind {self.rest[:100]}"
        self.rest += part

    def line(self):
        while b"\r\n" not in self.rest:
            self.more()
        line, self.rest = self.rest.split(b"\r\n", 1)
        return line

    def take(self, count):
        parts, have = [self.rest], len(self.rest)
        while have < count:
            part = self.socket.recv(count - have)
            assert part, f"the server ends the connection {count - have} bytes too early"
            parts.append(part)
            have += len(part)
        data = b"".join(parts)
        self.rest = data[count:]
        return data[:count]

    def expect(self, expected):
        got = self.take(len(expected))
        assert got == expected, f"{got[:100]} instead of {expected[:100]}"

    def close(self):
        self.socket.close()


def http(draw, connection, _number):
    """Ranges of a file whose content is known, directly and by way of the server itself as its own client."""
    begin = draw.randrange(len(PAGE))
    end = min(len(PAGE), begin + draw.choice([1, 100, 5000, 100000, 3000000]))
    path = draw.choice(["/page", "/proxied/page"])
    connection.send(
        f"GET {path} HTTP/1.1\r\nHost: {ADDRESS}\r\nRange: bytes={begin}-{end - 1}\r\n\r\n".encode()
    )
    status = connection.line()
    assert status.startswith(b"HTTP/1.1 206"), status
    length = None
    while header := connection.line():
        name, value = header.split(b":", 1)
        if name.lower() == b"content-length":
            length = int(value)
    assert length == end - begin, length
    connection.expect(PAGE[begin:end])
    return length


def redis(draw, connection, number):
    """A row of commands at once: what has been set is got."""
    pairs = [(f"key{number}-{i}", draw.randbytes(draw.choice([1, 30, 1000, 50000]))) for i in range(draw.randrange(1, 9))]
    asked, answer = [], []
    for key, value in pairs:
        asked.append(b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(key), key.encode(), len(value), value))
        answer.append(b"+OK\r\n")
    for key, value in pairs:
        asked.append(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key.encode()))
        answer.append(b"$%d\r\n%s\r\n" % (len(value), value))
    connection.send(b"".join(asked))
    connection.expect(b"".join(answer))
    return sum(len(value) for _, value in pairs)


def memcached(draw, connection, number):
    value = draw.randbytes(draw.choice([1, 30, 1000, 50000, 500000]))
    key = b"key%d-%d" % (number, draw.randrange(20))
    connection.send(b"set %s 7 0 %d\r\n%s\r\nget %s\r\n" % (key, len(value), value, key))
    connection.expect(b"STORED\r\nVALUE %s 7 %d\r\n%s\r\nEND\r\n" % (key, len(value), value))
    return len(value)


def echo(draw, connection, _number):
    """Sends and receives at once, as far as each is possible without waiting."""
    data = draw.randbytes(draw.choice([1, 100, 5000, 50000, 400000]))
    view, sent, got = memoryview(data), 0, 0
    stream = connection.socket
    stream.setblocking(False)
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    while got < len(data):
        poll.modify(stream, select.POLLIN | (select.POLLOUT if sent < len(data) else 0))
        ready = poll.poll(1000 * LIMIT)
        assert ready, f"nothing is ready with {sent} bytes sent and {got} received of {len(data)}"
        try:
            if sent < len(data):
                sent += stream.send(view[sent : sent + draw.randrange(1, 100000)])
        except BlockingIOError:
            pass
        try:
            part = stream.recv(draw.randrange(1, 100000))
            assert part, "the server ends the connection"
            assert part == view[got : got + len(part)], f"other bytes at {got}"
            got += len(part)
        except BlockingIOError:
            pass
    return got


def ask(number):
    draw = random.Random(number)
    request = {"http": http, "redis": redis, "memcached": memcached, "echo": echo}[PROTOCOL]
    start = time.monotonic()
    made = 0
    try:
        connection = Connection()
        while (made < LEAST or time.monotonic() - start < SECONDS) and not failures:
            count = request(draw, connection, number)
            made += 1
            with lock:
                counts["requests"] += 1
                counts["bytes"] += count
            # Connections come and go.
            if draw.random() < 0.05:
                connection.close()
                connection = Connection()
        connection.close()
    except Exception as error:
        failures.append(f"connection {number}, request {made}: {type(error).__name__}: {error}")


if PROTOCOL == "http":
    PAGE = open("/tmp/page", "rb").read()
threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(CONNECTIONS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(SECONDS + 2 * LIMIT)
    if thread.is_alive():
        failures.append("a thread hangs")
for failure in failures:
    print(failure, file=sys.stderr)
print(counts["requests"], "requests,", counts["bytes"], "bytes", flush=True)
sys.exit(1 if failures else 0)
