"""The programs that the documentation's commands call, as the tests run them: `python stand_ins.py
NAME ARGS...`.

`hearth` is the real one; of commands that would go on for ever or change the machine, only the
arguments are checked. `curl` sends the request to the gateway of the test, whatever machine the
address names (unless CURL_AS_WRITTEN is set), and fails on a refusal. `sqlite3` is Python's. `make`
looks whether the target exists. `sleep` waits until the gateway of the test runs a request, or has
none. What belongs to the machine (systemctl, git and the like) does nothing.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sqlite3
import sys
from pathlib import Path
from urllib.parse import urlsplit

import click

ENDLESS = ("serve", "demo", "emulate", "top")
OF_THE_MACHINE = (
    "docker",
    "git",
    "journalctl",
    "llama-server",
    "llama-swap",
    "loginctl",
    "pip",
    "pipx",
    "podman",
    "sudo",
    "systemctl",
    "systemd-analyze",
    "uv",
)


def hearth(arguments: list[str]) -> int:
    """The command itself, or a check of its arguments."""
    from hearth.cli import main  # noqa: PLC0415 - the other stand-ins need not wait for it

    if (
        arguments[0] in ENDLESS
        or "--watch" in arguments
        or (arguments[0] == "install-service" and "--print" not in arguments)
    ):
        name, command, rest = main.resolve_command(click.Context(main), arguments)
        assert command is not None
        command.make_context(name, rest)  # raises UsageError for what the command would not take
        return 0
    result = main.main(arguments, prog_name="hearth", standalone_mode=False)
    return result if isinstance(result, int) and arguments[:2] != ["config", "diff"] else 0


def curl(arguments: list[str]) -> int:
    """One request to the gateway of the test."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("-X", dest="method")
    parser.add_argument("-H", dest="headers", action="append", default=[])
    parser.add_argument("-d", dest="data")
    parser.add_argument("-s", "-N", "-f", dest="_", action="store_true")
    asked = parser.parse_args(arguments)
    address = urlsplit(asked.url if "://" in asked.url else f"http://{asked.url}")
    headers = {} if asked.data is None else {"Content-Type": "application/x-www-form-urlencoded"}
    headers |= dict(line.split(": ", 1) for line in asked.headers)
    gateway = urlsplit(os.environ["HEARTH_URL"]).netloc
    netloc = address.netloc if "CURL_AS_WRITTEN" in os.environ else gateway
    connection = http.client.HTTPConnection(netloc, timeout=40)
    connection.request(
        asked.method or ("GET" if asked.data is None else "POST"),
        address.path or "/",
        asked.data,
        headers,
    )
    answer = connection.getresponse()
    print(answer.status, answer.read().decode())  # noqa: T201
    return 0 if answer.status < 400 else 22


def sqlite(arguments: list[str]) -> int:
    """One statement on a file that is opened read-only."""
    option, file, statement = arguments
    assert option == "-readonly"
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    print(connection.execute(statement).fetchall())  # noqa: T201
    connection.close()
    return 0


def make(arguments: list[str]) -> int:
    """Whether every target is one of the Makefile's."""
    rules = (Path(__file__).parents[2] / "Makefile").read_text("utf-8").splitlines()
    targets = [each for each in arguments if "=" not in each]
    return (
        0
        if targets
        and all(any(line.startswith(f"{target}:") for line in rules) for target in targets)
        else 2
    )


def sleep(arguments: list[str]) -> int:
    """Until a request runs, where any waits."""
    connection = http.client.HTTPConnection(urlsplit(os.environ["HEARTH_URL"]).netloc, timeout=40)
    headers = {"Authorization": f"Bearer {os.environ.get('HEARTH_KEY')}"}
    while True:
        try:
            connection.request("GET", "/llm/queue/status", headers=headers)
            status = json.load(connection.getresponse())
        except ConnectionRefusedError:
            return 0
        waiting = status["external_queue"]["pending"] + status["internal_queue"]["pending"]
        if status["running"] or not waiting:
            return 0


def nothing(arguments: list[str]) -> int:
    """What belongs to the machine."""
    print("something")  # noqa: T201
    return 0


PROGRAMS = {
    "hearth": hearth,
    "curl": curl,
    "sqlite3": sqlite,
    "make": make,
    "sleep": sleep,
} | dict.fromkeys(OF_THE_MACHINE, nothing)

if __name__ == "__main__":
    sys.exit(PROGRAMS[sys.argv[1]](sys.argv[2:]))
