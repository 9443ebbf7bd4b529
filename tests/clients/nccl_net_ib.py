"""NCCL's transport over verbs, `net_ib`, between buffers of host memory: it is called as NCCL calls it, which itself needs a GPU.

Without an argument it sends back what it receives; with the server's address it sends random bytes, one message and then groups of
messages that come into one grouped receive, and compares what comes back. `net_ib` moves messages over verbs alone.
"""

import ctypes
import importlib.util
import os
import pathlib
import socket
import subprocess
import sys
import time

PORT = 17808
HANDLE = 128  # NCCL_NET_HANDLE_MAXSIZE
HOST_MEMORY = 1  # NCCL_PTR_HOST
SIZES = [3_000_001, 64, 1, 9000, 100_000, 1 << 20, 4097, 0]  # the eight of a group, the most that one receive takes
ROUNDS = 40  # more than the requests that a connection has
LIMIT = 30
# Names of the members of `ncclNet_v12_t`, behind the transport's name.
CALLS = """init devices getProperties listen connect accept regMr regMrDmaBuf deregMr isend irecv iflush test closeSend closeRecv
    closeListen getDeviceMr irecvConsumed makeVDevice finalize setNetAttr""".split()

Pointer, Size = ctypes.c_void_p, ctypes.c_size_t


class NetIb:
    """The library's own table `ncclNetIb`, which it has a symbol for but doesn't export."""

    def __init__(self):
        (folder,) = importlib.util.find_spec("nvidia.nccl").submodule_search_locations
        path = pathlib.Path(folder, "lib/libnccl.so.2")
        self.library = ctypes.CDLL(path)
        symbols = {}
        for line in subprocess.check_output(["nm", path], text=True).splitlines():
            value, _, name = line.rpartition(" ")
            if name in ("ncclNetIb", "ncclGetVersion"):
                symbols[name] = int(value.split()[0], 16)
        exported = ctypes.cast(self.library.ncclGetVersion, Pointer).value
        place = exported - symbols["ncclGetVersion"] + symbols["ncclNetIb"]
        name, *functions = (Pointer * (1 + len(CALLS))).from_address(place)
        assert ctypes.string_at(name) == b"IB", "the table isn't that of net_ib"
        self.functions = dict(zip(CALLS, functions))

    def call(self, name, *arguments):
        result = ctypes.CFUNCTYPE(ctypes.c_int)(self.functions[name])(*arguments)
        if result != 0:
            sys.exit(f"{name} fails: {result}")

    def get(self, name, *arguments):
        """What a call puts behind its last argument: nothing, while it can't be done yet."""
        made = Pointer()
        self.call(name, *arguments, ctypes.byref(made))
        return made

    def until_made(self, name, *arguments):
        made, end = Pointer(), time.monotonic() + LIMIT
        while not made:
            made = self.get(name, *arguments)
            if time.monotonic() > end:
                sys.exit(f"{name} makes nothing")
        return made

    def wait(self, request, messages):
        """Waits for the end of a request, and returns the lengths of its messages."""
        done, lengths, end = ctypes.c_int(), (ctypes.c_int * messages)(), time.monotonic() + LIMIT
        while not done.value:
            self.call("test", request, ctypes.byref(done), lengths)
            if time.monotonic() > end:
                sys.exit("a request doesn't end")
        return list(lengths)


class Memory:
    """Buffers for a group of messages."""

    def __init__(self, net, comm, contents):
        self.buffers = [ctypes.create_string_buffer(content, len(content) + 1) for content in contents]
        self.addresses = [ctypes.cast(buffer, Pointer) for buffer in self.buffers]
        self.handles = [
            net.get("regMr", comm, address, Size(len(buffer)), HOST_MEMORY)
            for address, buffer in zip(self.addresses, self.buffers)
        ]

    def bytes(self, lengths):
        return [buffer.raw[:length] for buffer, length in zip(self.buffers, lengths)]

    def close(self, net, comm):
        for handle in self.handles:
            net.call("deregMr", comm, handle)


class Link:
    """A connection in each direction."""

    def __init__(self, peer):
        self.net = net = NetIb()
        traffic_class = ctypes.c_int(-1)
        self.context = Pointer()
        net.call("init", ctypes.byref(self.context), ctypes.c_uint64(1), ctypes.byref(traffic_class), None, None)
        count = ctypes.c_int()
        net.call("devices", ctypes.byref(count))
        if count.value != 1:
            sys.exit(f"net_ib has {count.value} devices")
        handle = ctypes.create_string_buffer(HANDLE)
        self.listening = net.get("listen", self.context, 0, handle)
        peer.sendall(handle.raw)
        remote = ctypes.create_string_buffer(peer.recv(HANDLE, socket.MSG_WAITALL), HANDLE)
        # Both sides connect and accept, and no call blocks.
        self.sending, self.receiving = Pointer(), Pointer()
        end = time.monotonic() + LIMIT
        while not (self.sending and self.receiving):
            if not self.sending:
                net.call("connect", self.context, 0, remote, ctypes.byref(self.sending), None)
            if not self.receiving:
                net.call("accept", self.listening, ctypes.byref(self.receiving), None)
            if time.monotonic() > end:
                sys.exit("the sides don't find each other")

    def send(self, contents):
        memory = Memory(self.net, self.sending, contents)
        requests = [
            self.net.until_made(
                "isend", self.sending, address, Size(len(content)), tag, handle, None
            )
            for tag, (content, address, handle) in enumerate(zip(contents, memory.addresses, memory.handles))
        ]
        for request in requests:
            self.net.wait(request, 1)
        memory.close(self.net, self.sending)

    def receive(self, sizes):
        memory = Memory(self.net, self.receiving, [bytes(size) for size in sizes])
        count = len(sizes)
        request = self.net.until_made(
            "irecv",
            self.receiving,
            count,
            (Pointer * count)(*memory.addresses),
            (Size * count)(*sizes),
            (ctypes.c_int * count)(*range(count)),
            (Pointer * count)(*memory.handles),
            None,
        )
        lengths = self.net.wait(request, count)
        received = memory.bytes(lengths)
        memory.close(self.net, self.receiving)
        return received

    def close(self):
        self.net.call("closeSend", self.sending)
        self.net.call("closeRecv", self.receiving)
        self.net.call("closeListen", self.listening)
        self.net.call("finalize", self.context)


def groups():
    yield SIZES[:1]
    yield SIZES
    for number in range(ROUNDS):
        yield SIZES[1 : 2 + number % 4]


def serve():
    listener = socket.create_server(("", PORT))
    peer, _ = listener.accept()
    link = Link(peer)
    for sizes in groups():
        link.send(link.receive(sizes))
    peer.recv(1)
    link.close()


def use(address):
    peer = socket.create_connection((address, PORT))
    link = Link(peer)
    for sizes in groups():
        wanted = [os.urandom(size) for size in sizes]
        link.send(wanted)
        if link.receive(sizes) != wanted:
            sys.exit("other bytes come back")
    peer.close()
    link.close()


if len(sys.argv) > 1:
    use(sys.argv[1])
else:
    serve()
