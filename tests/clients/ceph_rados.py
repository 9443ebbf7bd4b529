"""Ceph with the messenger `async+rdma`: an object that one client puts into a cluster of a monitor and a memory store is read by it again.

Without an argument it starts the cluster; with its address it is the client. All of Ceph's messages go over RDMA: the daemons and the client
are configured with no other messenger.
"""

import os
import pathlib
import socket
import subprocess
import sys
import tempfile

PORT = 17812
MONITOR = 17813
FSID = "6e1c9a4c-0c3f-4d4e-9f7d-3c1a9a9f5a01"
SIZE = 3_000_001
LIMIT = 40


def configuration(folder, address):
    path = pathlib.Path(folder, "ceph.conf")
    path.write_text(f"""
[global]
fsid = {FSID}
mon host = [v2:{address}:{MONITOR}]
auth cluster required = none
auth service required = none
auth client required = none
public network = {address}/32
ms type = async+rdma
ms async rdma device name = ferroce0
ms async rdma gid idx = 1
ms async rdma buffer size = 65536
ms async rdma send buffers = 128
ms async rdma receive buffers = 1024
ms async rdma receive queue len = 256
ms async op threads = 1
run dir = {folder}
admin socket =
pid file =
log file =
log to stderr = false
err to stderr = true
log to file = false
mon data = {folder}/mon
mon cluster log to file = false
mon allow pool size one = true
mon warn on pool no redundancy = false
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = 268435456
osd crush chooseleaf type = 0
osd pool default size = 1
osd pool default min size = 1
osd pool default pg autoscale mode = off
""")
    return ["--conf", str(path)]


def run(*words, **options):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, timeout=LIMIT, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)} fails")
    return done


def serve(folder):
    listener = socket.create_server(("", PORT))
    peer, _ = listener.accept()
    address = peer.getsockname()[0]
    told = configuration(folder, address)
    for name in ("mon", "osd"):
        os.mkdir(os.path.join(folder, name))
    monitors = os.path.join(folder, "monitors")
    place = f"[v2:{address}:{MONITOR}]"
    run("monmaptool", "--create", "--addv", "a", place, "--fsid", FSID, monitors, stdout=subprocess.DEVNULL)
    run("ceph-mon", *told, "--id", "a", "--mkfs", "--monmap", monitors)
    daemons = [subprocess.Popen(["ceph-mon", *told, "--id", "a", "--foreground"])]
    try:
        told = [*told, "--connect-timeout", str(LIMIT)]
        run("ceph", *told, "osd", "new", FSID, "0")
        run("ceph-osd", *told[:2], "--id", "0", "--mkfs", "--osd-uuid", FSID)
        daemons.append(subprocess.Popen(["ceph-osd", *told[:2], "--id", "0", "--foreground"]))
        run("ceph", *told, "osd", "pool", "create", "pool", "8", "8")
        peer.sendall(b"ready\n")
        peer.recv(1)
    finally:
        for daemon in reversed(daemons):
            daemon.kill()
            daemon.wait()


def use(folder, address):
    peer = socket.create_connection((address, PORT))
    if peer.makefile().readline() != "ready\n":
        sys.exit("the server has no cluster")
    told = configuration(folder, address)
    wanted, got = (pathlib.Path(folder, name) for name in ("wanted", "got"))
    wanted.write_bytes(os.urandom(SIZE))
    run("rados", *told, "--pool", "pool", "put", "object", str(wanted))
    run("rados", *told, "--pool", "pool", "get", "object", str(got))
    if got.read_bytes() != wanted.read_bytes():
        sys.exit("the cluster has other bytes")
    peer.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) > 1:
            use(folder, sys.argv[1])
        else:
            serve(folder)
