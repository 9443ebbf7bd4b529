"""RDMA verbs without an adapter: the environment for programs that use them.

    import ferroce, subprocess
    subprocess.run(["ibv_devinfo"], env=ferroce.env())
"""

import json
import os
import subprocess

__all__ = ["command", "devices", "env"]

_COMMAND = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_dist", "bin", "ferroce")


def command():
    """The path of the `ferroce` command."""
    return _COMMAND


def env(base=None, preload=True, sockets=False):
    """The environment in which a program, and what it starts, has Ferroce's devices.

    base: what to add to, without it `os.environ`. preload, sockets: as `--no-preload` and `--sockets` of `ferroce run`.
    Raises RuntimeError with the command's output if a variable FERROCE_... is invalid.
    """
    variables = dict(os.environ if base is None else base)
    words = ["env", "--json"]
    if not preload:
        words.append("--no-preload")
    if sockets:
        words.append("--sockets")
    variables.update(_ask(words, variables))
    return variables


def devices(base=None):
    """The devices that programs see here: what `ferroce devices --json` prints."""
    return _ask(["devices", "--json"], base)


def _ask(words, variables):
    result = subprocess.run(
        [_COMMAND] + words,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        timeout=30,
    )
    if result.returncode != 0:
        raise RuntimeError(result.stderr.strip())
    return json.loads(result.stdout)
