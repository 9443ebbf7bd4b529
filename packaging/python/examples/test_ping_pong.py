"""An unmodified program of rdma-core (Debian: ibverbs-utils; RHEL: libibverbs-utils) between two processes and two hosts."""

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


def expect_messages_were_repeated(server, client):
    # A side exits after its last message. If its last acknowledgement is lost, it can't repeat it, and the other side may fail.
    # This happens on any adapter.
    assert 0 in (server.status, client.status), (server, client)
    assert "200 iters" in server.stdout + client.stdout


@pytest.mark.ferroce(fault="drop=2%,seed=7")
def test_lost_packets_are_sent_again(ferroce_pair):
    expect_messages_were_repeated(*ferroce_pair(PING_PONG, PING_PONG + ["127.0.0.1"]))


@pytest.mark.ferroce(fault="drop=2%,seed=7")
def test_two_hosts_with_a_bad_cable(ferroce_hosts):
    expect_messages_were_repeated(*ferroce_hosts(PING_PONG, PING_PONG + [ferroce_hosts.server_address]))
