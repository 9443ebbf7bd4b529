"""Fixtures for tests of programs that use RDMA: an environment, a device, two processes on one host or on two.

`@pytest.mark.ferroce(fault="drop=1%,seed=7")` harms packets for one test; `devices` and `fabric` are the variables
FERROCE_DEVICES and FERROCE_FABRIC.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time

import pytest

import ferroce

# Seconds that a side has after the other one has failed.
GRACE = 2

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

    def said(self):
        """The outcome of a process that has ended."""
        return self._said(self.process.returncode)

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


def _listens(port, process):
    """Whether a process listens at a TCP port of a process's network namespace."""
    for table in ("tcp", "tcp6"):
        try:
            with open("/proc/{}/net/{}".format(process, table)) as lines:
                entries = [line.split() for line in lines][1:]
        except OSError:
            continue
        if any(entry[3] == "0A" and int(entry[1].rsplit(":", 1)[1], 16) == port for entry in entries):
            return True
    return False


class _Runner:
    """Runs a server and a client, each in its network namespace: a list of words to enter it, and a process that is there."""

    def __init__(self, environment, server=((), "self"), client=((), "self")):
        self.environment, self.sides = environment, (server, client)
        self.started = []

    def start(self, side, words):
        process = _Process(list(self.sides[side][0]) + list(words), self.environment)
        self.started.append(process)
        return process

    def pair(self, server, client, port, timeout):
        deadline = time.monotonic() + timeout
        first = self.start(0, server)
        while port is not None and not _listens(port, self.sides[0][1]) and first.process.poll() is None:
            if time.monotonic() > deadline:
                first.end()
                why = "the server doesn't listen at TCP port {} after {} s, so the client wasn't started: pass port=…, or port=None"
                pytest.fail("{}\nserver: {}".format(why.format(port, timeout), first.said()), pytrace=False)
            time.sleep(0.02)
        sides = (first, self.start(1, client))
        # A side that has failed leaves the other one waiting: that gets a grace period, and both are reported.
        while any(side.process.poll() is None for side in sides):
            if any(side.process.poll() for side in sides):
                deadline = min(deadline, time.monotonic() + GRACE)
            if time.monotonic() > deadline:
                late = [name for name, side in zip(("server", "client"), sides) if side.process.poll() is None]
                for side in sides:
                    side.end()
                outcomes = ["{}: {}".format(name, side.said()) for name, side in zip(("server", "client"), sides)]
                pytest.fail("{} took too long\n{}".format(" and ".join(late), "\n".join(outcomes)), pytrace=False)
            time.sleep(0.02)
        return tuple(side.outcome(deadline) for side in sides)

    def end(self):
        for process in reversed(self.started):
            process.end()


@pytest.fixture
def ferroce_pair(ferroce_env, ferroce_device):
    """Runs a server and a client: `ferroce_pair(server, client, port=18515, timeout=30)`.

    Each is a list of words. The client starts when a process listens at the TCP port, or at once with `port=None`. Returns both
    outcomes. A process that takes longer than `timeout` seconds fails the test; nothing that was started is left.
    """
    runner = _Runner(ferroce_env)

    def pair(server, client, port=18515, timeout=30):
        return runner.pair(server, client, port, timeout)

    yield pair
    runner.end()


class Hosts:
    """Two hosts with a cable between them. `hosts(server, client, port=18515, timeout=30)` is as `ferroce_pair`."""

    server_address, client_address = "10.78.0.1", "10.78.0.2"

    def __init__(self, runner):
        self._runner = runner

    def __call__(self, server, client, port=18515, timeout=30):
        return self._runner.pair(server, client, port, timeout)


# Typed at the first host, by the root of both hosts' user namespace.
_CABLE = """
ip link add eth0 type veth peer name eth0 netns {other}
up() {{
    echo "ip link set lo up; ip link set eth0 addrgenmode none 2> /dev/null || true; ip addr add $1/24 dev eth0; ip link set eth0 up"
}}
eval "$(up {address})"
there="nsenter --target {other} --net"
$there sh -e -c "$(up {other_address})"
until ip -o link show eth0 | grep -q 'state UP' && $there ip -o link show eth0 | grep -q 'state UP'; do sleep 0.02; done
"""


@pytest.fixture
def ferroce_hosts(ferroce_env):
    """Two hosts, for a server and a client: `hosts(server, [..., hosts.server_address])`.

    Each has a network namespace of its own, and they are joined by a veth pair. This needs unshare, nsenter and ip, and a kernel
    that lets users make namespaces; where it doesn't, as in most containers, the test is skipped with the reason.
    """
    missing = [name for name in ("unshare", "nsenter", "ip") if not shutil.which(name)]
    if missing:
        pytest.skip("two hosts need " + ", ".join(missing) + " (util-linux, iproute2)")
    runner = _Runner(ferroce_env)
    deadline = time.monotonic() + 20
    try:
        first = runner.start(0, ["unshare", "--user", "--map-root-user", "--net", "sleep", "infinity"])
        enter = ["nsenter", "--preserve-credentials", "--user", "--target", str(_there(first, deadline))]
        second = runner.start(0, enter + ["unshare", "--net", "sleep", "infinity"])
        keepers = [_there(process, deadline) for process in (first, second)]
        script = _CABLE.format(
            other=keepers[1], address=Hosts.server_address, other_address=Hosts.client_address
        )
        cable = runner.start(0, enter + ["--net", "sh", "-e", "-c", script]).outcome(deadline)
        if cable.status != 0:
            pytest.skip("two hosts can't be joined here: " + cable.stderr.strip())
        runner.sides = tuple(
            (["nsenter", "--preserve-credentials", "--user", "--net", "--target", str(keeper)], keeper)
            for keeper in keepers
        )
        yield Hosts(runner)
    finally:
        runner.end()


def _forbidden():
    """Which setting keeps users from making namespaces, if one does."""
    for setting, refuses in (
        ("user.max_user_namespaces", "0"),
        ("kernel.unprivileged_userns_clone", "0"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1"),
    ):
        try:
            with open("/proc/sys/" + setting.replace(".", "/")) as value:
                if value.read().strip() == refuses:
                    return "{} is {} (sysctl)".format(setting, refuses)
        except OSError:
            pass
    return None


def _there(keeper, deadline):
    """The id of a process that makes namespaces, when it has made them."""
    pid = keeper.process.pid
    while True:
        if keeper.process.poll() is not None:
            says = keeper.outcome(deadline).stderr.strip()
            pytest.skip("two hosts need namespaces that users may make: " + (_forbidden() or says))
        with open("/proc/{}/comm".format(pid)) as name:
            if name.read().strip() == "sleep":
                return pid
        if time.monotonic() > deadline:
            pytest.fail("namespaces took too long", pytrace=False)
        time.sleep(0.01)
