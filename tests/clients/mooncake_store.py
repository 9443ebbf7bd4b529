"""Mooncake's store: an object that one process puts is read by another, over RDMA.

Without an argument it starts the store's master and a client that gives the store its memory; with the server's address it is a
client without memory of its own, which puts random bytes and compares what it gets: all of them went to the server's
memory and came back.
"""

import os
import pathlib
import socket
import subprocess
import sys

import mooncake
from mooncake.store import MooncakeDistributedStore

PORT = 17803
MASTER = 17804
SIZE = 3_000_001


def store(address, server, segment):
    made = MooncakeDistributedStore()
    if made.setup(address, "P2PHANDSHAKE", segment, 64 << 20, "rdma", "ferroce0", f"{server}:{MASTER}") != 0:
        sys.exit("the store doesn't start")
    return made


def serve():
    program = pathlib.Path(mooncake.__file__).with_name("mooncake_master")
    listener = socket.create_server(("", PORT))
    master = subprocess.Popen([program, f"--rpc_port={MASTER}", "--metrics_port=17805"])
    try:
        peer, _ = listener.accept()
        address = peer.getsockname()[0]
        made = store(address, address, 256 << 20)
        peer.sendall(b"ready\n")
        peer.recv(1)
        made.close()
    finally:
        master.kill()
        master.wait()


def use(address):
    peer = socket.create_connection((address, PORT))
    if peer.makefile().readline() != "ready\n":
        sys.exit("the server has no store")
    made = store(peer.getsockname()[0], address, 0)
    wanted = os.urandom(SIZE)
    if made.put("key", wanted) != 0:
        sys.exit("the store doesn't take the bytes")
    if made.get("key") != wanted:
        sys.exit("the store has other bytes")
    made.close()


if len(sys.argv) > 1:
    use(sys.argv[1])
else:
    serve()
