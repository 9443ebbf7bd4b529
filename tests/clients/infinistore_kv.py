"""InfiniStore: a client puts random blocks into a server's memory over RDMA, and gets them back into other memory.

Without an argument it is the server, without the HTTP port of `infinistore.server`; with the server's address it is the client.
"""

import asyncio
import os
import socket
import sys

import infinistore
import numpy

READY = 17806
PORT = 17807
BLOCK = 64 << 10
BLOCKS = 16


async def until_closed(listener):
    loop = asyncio.get_running_loop()
    peer, _ = await loop.sock_accept(listener)
    await loop.sock_recv(peer, 1)


def serve():
    import uvloop

    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    config = infinistore.ServerConfig(
        manage_port=READY + 2,
        service_port=PORT,
        dev_name="ferroce0",
        link_type="Ethernet",
        prealloc_size=1,
        minimal_allocate_size=64,
        log_level="warning",
    )
    infinistore.register_server(loop, config)
    listener = socket.create_server(("", READY))
    listener.setblocking(False)
    loop.run_until_complete(until_closed(listener))
    sys.stdout.flush()
    os._exit(0)  # its server has no end of its own


async def exchange(connection):
    sent = numpy.frombuffer(bytearray(os.urandom(BLOCK * BLOCKS)), dtype=numpy.uint8)
    got = numpy.zeros(BLOCK * BLOCKS, dtype=numpy.uint8)
    for memory in (sent, got):
        connection.register_mr(memory.ctypes.data, memory.nbytes)
    blocks = [(f"key {number}", number * BLOCK) for number in range(BLOCKS)]
    await connection.rdma_write_cache_async(blocks, BLOCK, sent.ctypes.data)
    await connection.rdma_read_cache_async(blocks, BLOCK, got.ctypes.data)
    if got.tobytes() != sent.tobytes():
        sys.exit("the server has other bytes")


def use(address):
    peer = socket.create_connection((address, READY))
    config = infinistore.ClientConfig(
        host_addr=address,
        service_port=PORT,
        connection_type=infinistore.TYPE_RDMA,
        dev_name="ferroce0",
        link_type="Ethernet",
        ib_port=1,
        log_level="warning",
    )
    connection = infinistore.InfinityConnection(config)
    connection.connect()
    asyncio.run(exchange(connection))
    connection.close()
    peer.close()


if len(sys.argv) > 1:
    use(sys.argv[1])
else:
    serve()
