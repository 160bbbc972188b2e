"""Making keys: printed once, and the printed lines really let the key in."""

from __future__ import annotations

import hashlib
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
