"""Mooncake's transfer engine between two processes that find each other by its P2P handshake.

Without an argument it serves a buffer; with the server's address it writes random bytes there, reads them back, and compares:
that proves one-sided writes and reads of the wheel's engine, with bytes that only the peer's memory can have kept.
"""

import os
import socket
import sys

from mooncake.engine import TransferEngine

PORT = 17801
SIZE = 3_000_001  # no multiple of the engine's slices


def engine(address):
    made = TransferEngine()
    if made.initialize(address, "P2PHANDSHAKE", "rdma", "ferroce0") != 0:
        sys.exit("the engine doesn't start")
    return made


def serve():
    listener = socket.create_server(("", PORT))
    peer, _ = listener.accept()
    address = peer.getsockname()[0]
    made = engine(address)
    buffer = made.allocate_managed_buffer(SIZE)
    peer.sendall(f"{address}:{made.get_rpc_port()} {buffer}\n".encode())
    checksum = peer.makefile().readline().strip()
    if made.read_bytes_from_buffer(buffer, SIZE).hex() != checksum:
        sys.exit("the server's buffer has other bytes")
    peer.sendall(b"ok\n")
    peer.recv(1)


def use(address):
    peer = socket.create_connection((address, PORT))
    answers = peer.makefile()
    made = engine(peer.getsockname()[0])
    session, remote = answers.readline().split()
    remote = int(remote)
    local = made.allocate_managed_buffer(SIZE)
    wanted = os.urandom(SIZE)
    made.write_bytes_to_buffer(local, wanted, SIZE)
    if made.transfer_sync_write(session, local, remote, SIZE) != 0:
        sys.exit("the write fails")
    peer.sendall(wanted.hex().encode() + b"\n")
    if answers.readline() != "ok\n":
        sys.exit("the server has other bytes")
    made.write_bytes_to_buffer(local, bytes(SIZE), SIZE)
    if made.transfer_sync_read(session, local, remote, SIZE) != 0:
        sys.exit("the read fails")
    if made.read_bytes_from_buffer(local, SIZE) != wanted:
        sys.exit("the read brought other bytes")


if len(sys.argv) > 1:
    use(sys.argv[1])
else:
    serve()
