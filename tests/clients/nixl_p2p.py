"""Two NIXL agents with the UCX backend of the wheel, over verbs alone.

Without an argument it serves a buffer; with the server's address it writes random bytes there, reads them back, and compares.
UCX may only use its verbs transports (`UCX_TLS` in the environment), so the bytes can't have gone another way.
"""

import os
import socket
import sys
import time

import numpy
from nixl_cu12._api import nixl_agent, nixl_agent_config

PORT = 17802
SIZE = 3_000_001


def agent(name):
    return nixl_agent(name, nixl_agent_config(backends=["UCX"]))


def message(peer, sent=None):
    """Sends the bytes behind their length, or receives such a message."""
    if sent is not None:
        peer.sendall(len(sent).to_bytes(4, "big") + sent)
        return sent
    length = int.from_bytes(peer.recv(4, socket.MSG_WAITALL), "big")
    return peer.recv(length, socket.MSG_WAITALL)


def transfer(made, kind, local, remote, peer_name):
    handle = made.initialize_xfer(kind, local, remote, peer_name)
    end = time.monotonic() + 30
    state = made.transfer(handle)
    while state == "PROC" and time.monotonic() < end:
        state = made.check_xfer_state(handle)
    if state != "DONE":
        sys.exit(f"{kind} ends as {state}")
    made.release_xfer_handle(handle)


def serve():
    listener = socket.create_server(("", PORT))
    peer, _ = listener.accept()
    made = agent("server")
    memory = numpy.zeros(SIZE, dtype=numpy.uint8)
    registered = made.register_memory([(memory.ctypes.data, SIZE, 0, "")], "DRAM")
    message(peer, made.get_agent_metadata())
    message(peer, made.get_serialized_descs(registered.trim()))
    wanted = message(peer)  # the client has written by then
    if memory.tobytes() != wanted:
        sys.exit("the server's buffer has other bytes")
    message(peer, b"ok")
    message(peer)


def use(address):
    peer = socket.create_connection((address, PORT))
    made = agent("client")
    memory = numpy.frombuffer(bytearray(os.urandom(SIZE)), dtype=numpy.uint8)
    wanted = memory.tobytes()
    local = made.register_memory([(memory.ctypes.data, SIZE, 0, "")], "DRAM").trim()
    name = made.add_remote_agent(message(peer))
    remote = made.deserialize_descs(message(peer))
    transfer(made, "WRITE", local, remote, name)
    message(peer, wanted)
    if message(peer) != b"ok":
        sys.exit("the server has other bytes")
    memory[:] = 0
    transfer(made, "READ", local, remote, name)
    if memory.tobytes() != wanted:
        sys.exit("the read brought other bytes")


if len(sys.argv) > 1:
    use(sys.argv[1])
else:
    serve()
