"""`hearth yield` without a command: what it asks for, and what it says."""

from __future__ import annotations

import json
import re
import shlex
import time
from pathlib import Path

import click
import pytest

from hearth.cli.yielding import Wanted, wanted
from tests.cli.stub_gateway import StubGateway
from tests.support.fields import Fields

LEASES = "/llm/gpu/leases"
STATUS = "/llm/gpu/status"
NOW = time.time()
FREE: Fields = {"state": "free", "to": None, "mib": None, "since": None, "until": None}
TIMED: Fields = {
    "id": "lease-1",
    "mib": 8192.0,
    "reason": "training\x1b[2J",
    "source": "api",
    "caller": "anna",
    "since": NOW,
    "until": NOW + 3600,
    "granted": True,
}
HELD: Fields = TIMED | {
    "id": "run-1",
    "mib": None,
    "reason": "",
    "source": "connection",
    "until": None,
    "granted": False,
}


@pytest.fixture
def stub():
    stub = StubGateway()
    with stub.listening():
        yield stub


@pytest.mark.parametrize(
    ("words", "mib", "for_s"),
    [
        ("2h", None, 7200.0),
        ("90m", None, 5400.0),
        ("30min", None, 1800.0),
        ("30s", None, 30.0),
        ("1.5h", None, 5400.0),
        ("1h30m", None, 5400.0),
        ("24h", None, 86400.0),
        ("8gb", 8192.0, None),
        ("8GB", 8192.0, None),
        ("0.5gib", 512.0, None),
        ("500mb", 500.0, None),
        ("8gb 2h", 8192.0, 7200.0),
        ("2h 500MiB", 500.0, 7200.0),
        ("", None, None),
    ],
)
def test_amounts_and_times_come_in_any_order(words, mib, for_s):
    assert wanted(words.split()) == Wanted(mib, for_s)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("8", "neither an amount"),
        ("h", "neither an amount"),
        ("8x", "neither an amount"),
        ("-2h", "neither an amount"),
        ("8gb2h", "neither an amount"),
        ("1h2h", "neither an amount"),
        ("8gb8mb", "neither an amount"),
        ("1e9gb", "neither an amount"),
        ("infgb", "neither an amount"),
        ("\u0668gb", "neither an amount"),
        ("2h 3h", "one time at most"),
        ("2gb 3gb", "one amount"),
        ("0h", "more than 0"),
        ("0gb", "more than 0"),
        ("25h", "24h at the latest"),
        ("24h1s", "24h at the latest"),
    ],
)
def test_what_is_no_amount_or_time_is_refused(words, says):
    with pytest.raises(click.UsageError, match=re.escape(says)):
        wanted(words.split())


@pytest.mark.parametrize(
    ("words", "body"),
    [
        ("2h", {"for_s": 7200.0, "wait_s": 10.0}),
        ("8gb", {"mib": 8192.0, "for_s": 86400.0, "wait_s": 10.0}),
        (
            "8gb 2h --name game --reason Doom --wait 0",
            {"id": "game", "mib": 8192.0, "for_s": 7200.0, "wait_s": 0.0, "reason": "Doom"},
        ),
    ],
)
def test_a_lease_is_asked_for(hearth, stub, words, body):
    stub.put(LEASES, TIMED, status=201)
    result = hearth("yield", "--url", stub.url, *words.split())
    assert (result.exit_code, stub.bodies) == (0, [body])
    until = time.strftime("%H:%M", time.localtime(NOW + 3600))
    assert re.fullmatch(
        rf"8\.0 GiB of the GPU is free until (\d{{4}}-\d\d-\d\d )?{until} \(lease lease-1\)\n",
        result.stdout,
    )


@pytest.mark.parametrize(("wait", "code"), [("5", 1), ("0", 0)])
def test_memory_that_is_not_free_in_time_is_a_failure_and_the_lease_stays(hearth, stub, wait, code):
    stub.put(LEASES, TIMED | {"granted": False}, status=201)
    result = hearth("yield", "--url", stub.url, "--wait", wait, "2h")
    assert (result.exit_code, "is being freed" in result.stdout) == (code, True)
    assert ("not free yet after 5 s" in result.stderr) == (code == 1)


def test_without_words_it_shows_who_has_the_gpu(hearth, stub):
    stub.put(STATUS, FREE)
    stub.put(LEASES, {"leases": []})
    assert hearth("yield", "--url", stub.url).stdout == "no other program has the GPU\n"
    stub.put(
        STATUS, {"state": "yielding", "to": "a game", "mib": None, "since": NOW, "until": None}
    )
    stub.put(LEASES, {"leases": [TIMED, HELD]})
    first, *rows = hearth("yield", "--url", stub.url).stdout.splitlines()
    assert first.startswith("a game is being given all memory of the GPU since ")
    assert first.endswith(", until it ends")
    assert rows[0].split() == ["lease", "memory", "until", "for"]
    assert re.fullmatch(r"lease-1  8\.0 GiB +\S.*  training\ufffd\[2J *", rows[1])
    assert re.split(" {2,}", rows[2].rstrip()) == [
        "run-1",
        "all memory, not free yet",
        "its program ends",
        "anna",
    ]
    narrow = hearth("yield", "--url", stub.url, COLUMNS="40").stdout.splitlines()
    assert all(len(line) <= 40 for line in narrow)
    assert {"lease-1", "8.0 GiB", "program", "memory,", "anna"} <= {
        cell for line in narrow for cell in re.split(" {2,}", line)
    }
    shown = json.loads(hearth("yield", "--url", stub.url, "--json").stdout)
    assert (shown["state"], len(shown["leases"])) == ("yielding", 2)


def test_a_key_without_the_right_sees_that_somebody_has_it(hearth, stub):
    stub.put(STATUS, FREE)
    stub.put(LEASES, {"error": "this key must not take leases (may_lease)"}, status=403)
    assert hearth("yield", "--url", stub.url).stdout == "no other program has the GPU\n"
    taking = hearth("yield", "--url", stub.url, "2h")
    assert (taking.exit_code, "HEARTH_KEY" in taking.stderr) == (1, True)
    assert "does not allow that: this key must not take leases (may_lease)" in taking.stderr


def test_an_end_leaves_the_leases_of_programs_that_run_unless_they_are_named(hearth, stub):
    stub.put(LEASES, {"leases": [TIMED, HELD]})
    stub.put(f"{LEASES}/lease-1", {"ended": ["lease-1"]})
    stub.put(f"{LEASES}/run-1", {"ended": ["run-1"]})
    end = ("yield", "--url", stub.url, "--end")
    assert hearth(*end).stdout == (
        "lease lease-1 is over\nlease run-1 goes on until its program ends\n"
    )
    assert hearth(*end, "--name", "run-1").stdout == "lease run-1 is over\n"
    assert json.loads(hearth(*end, "--json").stdout) == {"ended": ["lease-1"]}
    asked = [f"{each['method']} {each['path']}" for each in stub.seen]
    assert [each for each in asked if each.startswith("DELETE")] == [
        f"DELETE {LEASES}/lease-1",
        f"DELETE {LEASES}/run-1",
        f"DELETE {LEASES}/lease-1",
    ]
    unknown = hearth(*end, "--name", "x")
    assert (unknown.exit_code, unknown.stderr) == (1, "Error: there is no lease x\n")
    stub.put(LEASES, {"leases": []})
    assert hearth(*end).stdout == "no program has a lease\n"


@pytest.mark.parametrize(
    "arguments",
    [
        *("--end 2h", "2h -- true", "--json -- true", "--end -- true", "--", "true"),
        *("--wait 601 2h", "-- ''"),
    ],
)
def test_what_does_not_go_together_is_a_usage_error(hearth, stub, arguments):
    result = hearth("yield", "--url", stub.url, *shlex.split(arguments))
    assert (result.exit_code, stub.seen) == (2, [])


def test_without_a_gateway_it_says_what_to_do(hearth):
    for words in ([], ["2h"], ["--end"]):
        result = hearth("yield", "--url", "http://127.0.0.1:1", *words)
        assert (result.exit_code, "Start it with `hearth serve`" in result.stderr) == (3, True)


def test_the_names_of_leases_are_completed(hearth, stub, tmp_path: Path):
    stub.put(LEASES, {"leases": [TIMED, HELD]})
    words = {"COMP_WORDS": f"hearth yield --url {stub.url} --name r", "COMP_CWORD": "5"}
    assert hearth(_HEARTH_COMPLETE="bash_complete", **words).stdout == "plain,run-1\n"


def test_a_real_gateway_gives_shows_and_takes_back(hearth, url):
    at = ("yield", "--url", url)
    taken = hearth(*at, "8gb", "2h", "--name", "render", "--reason", "Blender")
    assert taken.stdout.startswith("8.0 GiB of the GPU is free until ")
    assert hearth(*at, "4gb", "--name", "render").stdout.startswith("4.0 GiB")
    shown = hearth(*at).stdout
    assert shown.startswith("another program has 4.0 GiB of the GPU since ")
    assert "\nrender  4.0 GiB  " in shown
    assert hearth(*at, "--end", "--name", "render").stdout == "lease render is over\n"
    assert hearth(*at).stdout == "no other program has the GPU\n"
    refused = hearth(*at, "2h", "--name", "Not a name")
    assert (refused.exit_code, "id: " in refused.stderr) == (2, True)
