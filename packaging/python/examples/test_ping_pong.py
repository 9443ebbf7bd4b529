"""An unmodified program of rdma-core (Debian: ibverbs-utils; RHEL: libibverbs-utils) between two processes."""

import shutil
import subprocess

import pytest

pytestmark = pytest.mark.skipif(not shutil.which("ibv_rc_pingpong"), reason="ibv_rc_pingpong isn't installed")

PING_PONG = ["ibv_rc_pingpong", "-g", "1", "-n", "200"]


def test_programs_see_a_device(ferroce_env, ferroce_device):
    shown = subprocess.run(["ibv_devices"], env=ferroce_env, stdout=subprocess.PIPE, universal_newlines=True, timeout=30)
    assert ferroce_device in shown.stdout


def test_two_processes_exchange_messages(ferroce_pair):
    server, client = ferroce_pair(PING_PONG, PING_PONG + ["127.0.0.1"])
    assert (server.status, client.status) == (0, 0), (server, client)
    assert "200 iters" in client.stdout


@pytest.mark.ferroce(fault="drop=2%,seed=7", fabric="udp")
def test_lost_packets_are_sent_again(ferroce_pair):
    server, client = ferroce_pair(PING_PONG, PING_PONG + ["127.0.0.1"])
    assert (server.status, client.status) == (0, 0), (server, client)
