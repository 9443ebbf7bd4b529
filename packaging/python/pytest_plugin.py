"""Fixtures for tests of programs that use RDMA: an environment, a device, two processes.

`@pytest.mark.ferroce(fault="drop=1%,seed=7")` harms packets for one test; `devices` and `fabric` are the variables
FERROCE_DEVICES and FERROCE_FABRIC.
"""

import os
import signal
import subprocess
import tempfile
import time

import pytest

import ferroce

_OPTIONS = {"fault": "FERROCE_FAULT", "devices": "FERROCE_DEVICES", "fabric": "FERROCE_FABRIC"}


def pytest_configure(config):
    config.addinivalue_line("markers", "ferroce(fault, devices, fabric): variables of Ferroce for a test")


@pytest.fixture
def ferroce_env(request):
    """The environment for `subprocess`, with what `@pytest.mark.ferroce` asks for."""
    variables = dict(os.environ)
    for mark in request.node.iter_markers("ferroce"):
        for name, value in mark.kwargs.items():
            if name not in _OPTIONS:
                raise pytest.UsageError("ferroce has no option {!r}; there are {}".format(name, ", ".join(_OPTIONS)))
            variables[_OPTIONS[name]] = value
    return ferroce.env(variables)


@pytest.fixture
def ferroce_device(ferroce_env):
    """The name of the first device. Without one the test fails with the words of `ferroce doctor`."""
    found = ferroce.devices(ferroce_env)
    if not found:
        says = subprocess.run(
            [ferroce.command(), "doctor"], env=ferroce_env, stdout=subprocess.PIPE, universal_newlines=True, timeout=30
        )
        pytest.fail(says.stdout, pytrace=False)
    return found[0]["name"]


class Outcome:
    """How a process ended: `status` (negative: by a signal), `stdout`, `stderr`."""

    def __init__(self, status, stdout, stderr):
        self.status, self.stdout, self.stderr = status, stdout, stderr

    def __repr__(self):
        return "Outcome(status={}, stdout={!r}, stderr={!r})".format(self.status, self.stdout, self.stderr)


class _Process:
    def __init__(self, words, environment):
        self.words = words
        self.stdout, self.stderr = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self.stdout,
            stderr=self.stderr,
            start_new_session=True,
        )

    def outcome(self, deadline):
        try:
            status = self.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.end()
            pytest.fail("{} took too long: {}".format(self.words, self._said(None)), pytrace=False)
        return self._said(status)

    def _said(self, status):
        texts = []
        for file in (self.stdout, self.stderr):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
        return Outcome(status, *texts)

    def end(self):
        # With what it has started.
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def _listens(port):
    """Whether somebody listens at a TCP port of this network namespace."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as lines:
                entries = [line.split() for line in lines][1:]
        except OSError:
            continue
        if any(entry[3] == "0A" and int(entry[1].rsplit(":", 1)[1], 16) == port for entry in entries):
            return True
    return False


@pytest.fixture
def ferroce_pair(ferroce_env, ferroce_device):
    """Runs a server and a client: `ferroce_pair(server, client, port=18515, timeout=30)`.

    Each is a list of words. The client starts when somebody listens at the TCP port, or at once with `port=None`. Returns both
    outcomes. A process that takes longer than `timeout` seconds fails the test; nothing that was started is left.
    """
    started = []

    def pair(server, client, port=18515, timeout=30):
        deadline = time.monotonic() + timeout
        first = _Process(server, ferroce_env)
        started.append(first)
        while port is not None and not _listens(port) and first.process.poll() is None:
            if time.monotonic() > deadline:
                first.outcome(deadline)
            time.sleep(0.02)
        second = _Process(client, ferroce_env)
        started.append(second)
        ended = second.outcome(deadline)
        return first.outcome(deadline), ended

    yield pair
    for process in started:
        process.end()
