"""An echo server on asyncio's streams, and with a third argument its client: so many connections at once, for so many seconds.

echo_asyncio.py ADDRESS PORT [CONNECTIONS SECONDS]
"""

import asyncio
import random
import sys
import time

ADDRESS, PORT = sys.argv[1], int(sys.argv[2])
LIMIT = 60


async def serve(reader, writer):
    while data := await reader.read(50000):
        writer.write(data)
        await writer.drain()
    writer.close()
    await writer.wait_closed()


async def server():
    listening = await asyncio.start_server(serve, ADDRESS, PORT)
    print("serving", flush=True)
    async with listening:
        await listening.serve_forever()


async def exchange(reader, writer, data):
    async def send():
        writer.write(data)
        await writer.drain()

    sending = asyncio.create_task(send())
    got = await asyncio.wait_for(reader.readexactly(len(data)), LIMIT)
    await sending
    assert got == data, "other bytes"


async def ask(number, seconds):
    draw = random.Random(number)
    start, made = time.monotonic(), 0
    while made < 3 or time.monotonic() - start < seconds:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(ADDRESS, PORT), LIMIT)
        for _ in range(draw.randrange(1, 20)):
            await exchange(reader, writer, draw.randbytes(draw.choice([1, 100, 5000, 50000, 300000])))
            made += 1
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), LIMIT) == b"", "bytes behind the last"
        writer.close()
        await asyncio.wait_for(writer.wait_closed(), LIMIT)
    return made


async def client(connections, seconds):
    made = await asyncio.gather(*(ask(number, seconds) for number in range(connections)))
    print(sum(made), "requests", flush=True)


asyncio.run(server() if len(sys.argv) == 3 else client(*map(int, sys.argv[3:5])))
