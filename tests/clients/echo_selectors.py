"""An echo server on one of the selectors that Python has.

echo_selectors.py ADDRESS PORT SELECTOR, which is Epoll, Poll or Select.
"""

import selectors
import socket
import sys

selector = getattr(selectors, sys.argv[3] + "Selector")()
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=50)
listener.setblocking(False)
selector.register(listener, selectors.EVENT_READ)
print("serving", flush=True)
while True:
    for key, events in selector.select():
        if key.fileobj is listener:
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                continue
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ, bytearray())
            continue
        stream, waiting = key.fileobj, key.data
        if events & selectors.EVENT_READ:
            try:
                data = stream.recv(30000)
            except BlockingIOError:
                data = None
            if data == b"":
                selector.unregister(stream)
                stream.close()
                continue
            waiting += data or b""
        if waiting:
            try:
                del waiting[: stream.send(waiting)]
            except BlockingIOError:
                pass
        # While much waits to be sent nothing is read.
        wanted = (selectors.EVENT_READ if len(waiting) < 200000 else 0) | (selectors.EVENT_WRITE if waiting else 0)
        selector.modify(stream, wanted, waiting)
