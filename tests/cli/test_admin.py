"""Making keys: printed once, and the printed lines really let the key in. Trying the alerts."""

from __future__ import annotations

import hashlib
import json
import re

import pytest
import yaml


def made(result) -> tuple[str, dict[str, object]]:
    """The key and the entry of `auth.keys` in what was printed."""
    assert result.exit_code == 0, result.output
    (key,) = re.findall(r"hearth_[A-Za-z0-9_-]{43}\b", result.output)
    document = yaml.safe_load(result.output[result.output.index("auth:") :])
    (entry,) = document["auth"]["keys"]
    return key, entry


def test_a_new_key_is_printed_once_with_yaml_that_holds_only_its_digest(hearth):
    result = hearth("admin", "key", "new", "open-webui")
    key, entry = made(result)
    assert entry == {"name": "open-webui", "sha256": hashlib.sha256(key.encode()).hexdigest(), "lane": "external"}
    assert result.output.count(key) == 1


def test_every_key_is_another(hearth):
    assert made(hearth("admin", "key", "new", "a"))[0] != made(hearth("admin", "key", "new", "a"))[0]


def test_lane_and_admin_are_written_into_the_yaml(hearth):
    _, entry = made(hearth("admin", "key", "new", "router", "--lane", "internal", "--admin"))
    assert (entry["lane"], entry["admin"]) == ("internal", True)


@pytest.mark.parametrize("name", ["yes", "0x10", "1.5", "null"])
def test_a_name_that_yaml_would_read_as_something_else_stays_text(hearth, name):
    assert made(hearth("admin", "key", "new", name))[1]["name"] == name


@pytest.mark.parametrize("name", ["", "two words", "-x", "a:b", "a\nb", 'a"b', "ü", "x" * 65])
def test_a_name_that_would_be_trouble_elsewhere_is_a_usage_error(hearth, name):
    result = hearth("admin", "key", "new", "--", name)
    assert result.exit_code == 2
    assert "hearth_" not in result.output


def test_an_unknown_lane_is_a_usage_error(hearth):
    assert hearth("admin", "key", "new", "a", "--lane", "fast").exit_code == 2


ALERT_TEST = "/llm/admin/alert/test"


def tried(target: str, answer: str) -> dict[str, object]:
    return {"target": target, "host": f"{target}.example", "delivered": answer.startswith("http_2"), "answer": answer}


def test_trying_the_alerts_says_what_each_target_answered_and_ends_with_0_where_all_took_it(hearth, busy):
    busy.put(ALERT_TEST, {"targets": [tried("discord", "http_200"), tried("ntfy", "http_204")]})
    result = hearth("admin", "alert", "test", "--url", busy.url, HEARTH_KEY="hearth_k")
    assert (result.exit_code, result.stdout) == (0, "discord (discord.example): delivered\nntfy (ntfy.example): delivered\n")
    assert (busy.seen[-1]["method"], busy.seen[-1]["authorization"]) == ("POST", "Bearer hearth_k")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("http_404", "there is nothing at the address"),
        ("http_401", "copy it again"),
        ("dns", "is the machine online?"),
        ("http_500", "not delivered: http_500\n"),
        ("timeout", "no answer in time"),
    ],
)
def test_one_that_did_not_take_it_ends_with_1_and_says_what_to_look_at(hearth, busy, answer, says):
    busy.put(ALERT_TEST, {"targets": [tried("discord", "http_200"), tried("ntfy", answer)]})
    result = hearth("admin", "alert", "test", "--url", busy.url)
    assert result.exit_code == 1
    assert "discord (discord.example): delivered" in result.stdout
    assert says in result.stdout


def test_trying_the_alerts_as_json_is_the_gateways_own_answer(hearth, busy):
    busy.put(ALERT_TEST, {"targets": [tried("discord", "http_404")]})
    result = hearth("admin", "alert", "test", "--json", "--url", busy.url)
    assert (result.exit_code, json.loads(result.stdout)) == (1, {"targets": [tried("discord", "http_404")]})


def test_without_a_target_the_gateway_says_what_to_configure_and_it_ends_with_1(hearth, busy):
    busy.put(ALERT_TEST, {"error": "no place for messages is configured: set alerts.discord_webhook_url"}, 404)
    result = hearth("admin", "alert", "test", "--url", busy.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "alerts.discord_webhook_url" in result.stderr


@pytest.mark.parametrize("answer", [{}, {"targets": None}, {"targets": ["x"]}, {"targets": []}])
def test_an_answer_without_targets_is_no_success(hearth, busy, answer):
    busy.put(ALERT_TEST, answer)
    assert hearth("admin", "alert", "test", "--url", busy.url).exit_code == 1


def test_no_answer_can_drive_the_terminal(hearth, busy):
    busy.put(ALERT_TEST, {"targets": [tried("x\x07", "y\x07")]})
    assert hearth("admin", "alert", "test", "--url", busy.url).stdout == "x\ufffd (x\ufffd.example): not delivered: y\ufffd\n"
