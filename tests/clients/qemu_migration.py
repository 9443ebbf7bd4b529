"""QEMU moves a virtual machine by `migrate rdma:`: without an argument the machine's destination, with its address the source.

24 MiB of memory, which the BIOS leaves alone, are random at the source only. The destination compares what has come with the source's digest.
"""

import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

CONTROL, MIGRATION = 17804, 17805
BEGIN, LENGTH = 16 << 20, 24 << 20
# The machine's program is its BIOS, which finds nothing to start.
QEMU = ["qemu-system-x86_64", "-accel", "tcg", "-m", "64", "-nodefaults", "-display", "none"]


class Machine:
    def __init__(self, folder, *options):
        path = os.path.join(folder, "monitor")
        words = [*QEMU, "-qmp", f"unix:{path},server=on,wait=off", *options]
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
        monitor = socket.socket(socket.AF_UNIX)
        monitor.settimeout(40)
        while True:
            try:
                monitor.connect(path)
                break
            except OSError:
                assert self.process.poll() is None, "QEMU has ended"
                time.sleep(0.05)
        self.stream = monitor.makefile("rw")
        self.stream.readline()
        self.do("qmp_capabilities")

    def do(self, command, **arguments):
        self.stream.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.stream.flush()
        for line in self.stream:
            answer = json.loads(line)
            if "error" in answer:
                raise RuntimeError(f"{command}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]
        raise RuntimeError(f"{command}: QEMU has ended")

    def end(self):
        self.do("quit")
        assert self.process.wait(20) == 0


def destination(folder):
    with socket.create_server(("", CONTROL)) as listener:
        control, _ = listener.accept()
    address = control.getsockname()[0]
    machine = Machine(folder, "-incoming", f"rdma:{address}:{MIGRATION}")
    control.sendall(b"r")
    told = control.makefile().readline().strip()
    copy = os.path.join(folder, "copy")
    while machine.do("query-status")["status"] == "inmigrate":
        time.sleep(0.05)
    machine.do("pmemsave", val=BEGIN, size=LENGTH, filename=copy)
    with open(copy, "rb") as file:
        found = hashlib.sha256(file.read()).hexdigest()
    machine.end()
    assert found == told, f"the memory differs: {found}, and {told} at the source"
    print("the memory is the source's")


def source(folder, address):
    content = os.urandom(LENGTH)
    original = os.path.join(folder, "original")
    with open(original, "wb") as file:
        file.write(content)
    control = socket.create_connection((address, CONTROL), 20)
    machine = Machine(folder, "-device", f"loader,file={original},addr={BEGIN},force-raw=on")
    assert control.recv(1) == b"r"
    machine.do("migrate", uri=f"rdma:{address}:{MIGRATION}")
    while (state := machine.do("query-migrate"))["status"] not in ("completed", "failed"):
        time.sleep(0.05)
    machine.end()
    assert state["status"] == "completed", state
    assert state["ram"]["transferred"] > LENGTH, state
    control.sendall(hashlib.sha256(content).hexdigest().encode() + b"\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) > 1:
            source(folder, sys.argv[1])
        else:
            destination(folder)
