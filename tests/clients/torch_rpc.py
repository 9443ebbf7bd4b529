"""torch's remote procedure calls by TensorPipe, with its transport `ibv` alone.

Without an argument it is the one that is called; with its address it sends random tensors there, has them added to others, and
compares what comes back. The two meet over TCP, and no other transport is allowed for the calls.
"""

import os
import socket
import sys

import torch
from torch.distributed import rpc

PORT = 17810
STORE = 17811
SIZES = [1, 1000, 300_007]
ROUNDS = 8


def reversed_sum(left, right):
    return (left + right).flip(0)


def join(name, rank, address):
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://{address}:{STORE}",
        rpc_timeout=40,
        _transports=["ibv"],
        _channels=["basic"],
    )
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)


def serve():
    listener = socket.create_server(("", PORT))
    peer, _ = listener.accept()
    join("server", 0, peer.getsockname()[0])
    rpc.shutdown()


def use(address):
    peer = socket.create_connection((address, PORT))
    join("client", 1, address)
    for size in SIZES:
        for _ in range(ROUNDS):
            left, right = (torch.randint(-(2**62), 2**62, (size,)) for _ in range(2))
            got = rpc.rpc_sync("server", reversed_sum, args=(left, right))
            if not torch.equal(got, reversed_sum(left, right)):
                sys.exit("other numbers come back")
    waiting = [rpc.rpc_async("server", reversed_sum, args=(left, right)) for _ in range(ROUNDS)]
    if not all(torch.equal(one.wait(), reversed_sum(left, right)) for one in waiting):
        sys.exit("other numbers come back from calls at once")
    rpc.shutdown()
    peer.close()


for one in ("TP_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
    os.environ.setdefault(one, "eth0")
if len(sys.argv) > 1:
    use(sys.argv[1])
else:
    serve()
