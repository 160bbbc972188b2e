"""`hearth key`: keys that are printed once, and the file that they are written into."""

from __future__ import annotations

import re
import stat

import pytest
import yaml

from hearth.admission.auth import digest_of
from hearth.config.loading import load_gateway_config
from hearth.types import JsonDict, Lane, Priority

B = "b" * 64


def made(result) -> tuple[str, JsonDict]:
    """The key and the entry of `auth.keys` in what was printed."""
    assert result.exit_code == 0, result.output
    (key,) = re.findall(r"hearth_[A-Za-z0-9_-]{43}\b", result.output)
    document = yaml.safe_load(result.output[result.output.index("auth:") :])
    (entry,) = document["auth"]["keys"]
    return key, entry


def test_a_new_key_is_printed_once_with_yaml_that_holds_only_its_digest(hearth, tmp_path):
    key, entry = made(hearth("key", "new", "open-webui"))
    assert entry == {"name": "open-webui", "sha256": digest_of(key), "lane": "external"}
    assert made(hearth("key", "new", "open-webui"))[0] != key
    admins = hearth("key", "new", "router", "--lane", "internal", "--admin")
    assert (made(admins)[1]["lane"], made(admins)[1]["admin"]) == ("internal", True)
    lessee = made(hearth("key", "new", "game-pc", "--may-lease"))[1]
    assert (lessee["may_lease"], "admin" in lessee) == (True, False)
    (tmp_path / "made.yaml").write_text(admins.stdout[admins.stdout.index("auth:") :])
    assert "keys: 1" in hearth("config", "check", str(tmp_path / "made.yaml")).stdout
    for name in ("yes", "0x10", "1.5", "null"):  # YAML would read it as something else
        assert made(hearth("key", "new", name))[1]["name"] == name


@pytest.mark.parametrize(
    "args",
    [
        *((name,) for name in ("", "two words", "-x", "a:b", "a\nb", 'a"b', "ü", "x" * 65)),
        ("a", "--lane=fast"),
    ],
)
def test_a_name_that_would_be_trouble_elsewhere_is_a_usage_error(hearth, args):
    result = hearth("key", "new", *args) if args[1:] else hearth("key", "new", "--", *args)
    assert (result.exit_code, "hearth_" in result.output) == (2, False)


def test_new_and_revoke_edit_the_file_and_list_shows_no_digest(hearth, tmp_path):
    file = tmp_path / "config" / "llm_gateway.yaml"
    file.parent.mkdir()
    file.write_text("# mine\nqueue:\n  max_external_depth: 5\n")
    file.chmod(0o640)
    result = hearth("key", "new", "anna", "--admin", "--write")
    (secret,) = re.findall(r"hearth_[A-Za-z0-9_-]{43}\b", result.output)
    digest = digest_of(secret)
    assert (result.exit_code, digest in file.read_text()) == (0, True)
    assert (file.read_text().startswith("# mine\n"), stat.S_IMODE(file.stat().st_mode)) == (
        True,
        0o640,
    )
    hearth("key", "new", "tv", "--lane", "internal", "--write")
    hearth("key", "new", "voice", "--assistant", "--write")
    hearth("key", "new", "pc", "--may-lease", "--write")
    assert "pc external GPU leases all" in " ".join(hearth("key", "list").stdout.split())
    hearth("key", "revoke", "pc")
    (voice,) = [
        each for each in load_gateway_config(file).settings.auth.keys if each.name == "voice"
    ]
    assert (voice.lane, voice.priority) == (Lane.INTERNAL, Priority.CRITICAL)
    hearth("key", "revoke", "voice")
    listed = hearth("key", "list").stdout
    assert [" ".join(line.split()[:4]) for line in listed.splitlines()] == [
        "key of lane rights",
        "anna external admin all",
        "tv internal - all",
    ]
    assert (digest in listed, digest[:8] in listed, secret in listed) == (False, True, False)
    again = hearth("key", "new", "tv", "--write")
    assert (again.exit_code, "hearth_" in again.output) == (2, False)
    assert hearth("key", "revoke", "tv").exit_code == 0
    assert hearth("key", "revoke", "tv").exit_code == 2
    assert "No key is left" in hearth("key", "revoke", "anna").stdout
    assert hearth("key", "list").stdout == "no keys: callers on this machine only\n"
    assert [each.name for each in file.parent.iterdir()] == ["llm_gateway.yaml"]


@pytest.mark.parametrize(
    ("text", "args", "code", "says"),
    [
        (None, ("new", "a", "--write"), 2, "no configuration file"),
        (
            f"auth: {{keys: [{{name: old, sha256: {B}}}]}}\n",
            ("new", "a", "--write"),
            2,
            "edit the file by hand",
        ),
        (
            f"auth: {{keys: [{{name: old, sha256: {B}}}]}}\n",
            ("revoke", "old"),
            2,
            "edit the file by hand",
        ),
        ("{queue: {}}\n", ("new", "a", "--write"), 2, "edit the file by hand"),
        ("queue: 7\n", ("new", "a", "--write"), 2, "1 problem in the configuration"),
        (
            f"server: {{host: 0.0.0.0}}\nauth:\n  keys:\n    - name: old\n      sha256: {B}\n",
            ("revoke", "old"),
            2,
            "without auth.keys, any",
        ),
        ("queue: {}\n", ("new", "a", "--write"), 1, "cannot be written"),
    ],
)
def test_a_file_that_cannot_be_edited_safely_stays_as_it_is_and_no_key_is_shown(
    hearth, tmp_path, text, args, code, says
):
    file = tmp_path / "config" / "llm_gateway.yaml"
    file.parent.mkdir(exist_ok=True)
    if code == 1:
        file.with_name("llm_gateway.yaml.new").mkdir()
    if text is not None:
        file.write_text(text)
    result = hearth("key", *args)
    assert (result.exit_code, text is None or file.read_text() == text) == (code, True)
    assert (says in result.stderr, "hearth_" in result.output) == (True, False)


@pytest.mark.parametrize("found_by", ["directory", "HEARTH_CONFIG", "--config"])
def test_lines_to_add_by_hand_name_the_file_in_force(hearth, tmp_path, found_by):
    file = tmp_path / ("config" if found_by == "directory" else "etc") / "llm_gateway.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"auth:\n  keys:\n    - name: old\n      sha256: {B}\n")
    args = ("--config", str(file)) if found_by == "--config" else ()
    environ = {"HEARTH_CONFIG": str(file)} if found_by == "HEARTH_CONFIG" else {}
    told = hearth("key", "new", "anna", *args, **environ)
    assert f"Put these lines into {file}; a saved edit is live at once" in told.stdout
    refused = hearth("key", "new", "old", *args, **environ)
    assert (refused.exit_code, "hearth_" in refused.output) == (2, False)
    assert f"{file} has a key of that name already" in refused.stderr
    assert "`hearth key revoke old`" in refused.stderr


def test_the_first_key_is_written_into_a_file_that_only_lacks_one(hearth, tmp_path):
    file = tmp_path / "open.yaml"
    file.write_text("server: {host: 0.0.0.0}  # all\n")
    told = hearth("key", "new", "anna", "--write", "--config", "open.yaml")
    kept = load_gateway_config(file).settings.auth.keys
    assert (told.exit_code, [each.name for each in kept]) == (0, ["anna"])
    assert file.read_text().startswith("server: {host: 0.0.0.0}  # all\n")
    file.write_text("server: {host: 0.0.0.0}\nqueue: 7\n")
    refused = hearth("key", "new", "anna", "--write", "--config", "open.yaml")
    assert (refused.exit_code, "hearth_" in refused.output) == (2, False)
    assert "2 problems in the configuration" in refused.stderr
    for text in ("queue: 7\n", "[" * 5000, "a: b: c\n", "\xff"):
        file.write_bytes(text.encode("latin-1"))
        for args in (("new", "anna", "--write"), ("revoke", "anna")):
            assert hearth("key", *args, "--config", "open.yaml").exit_code == 2


def test_a_key_for_a_file_that_lacks_one_is_made_and_names_it(hearth, tmp_path):
    (tmp_path / "open.yaml").write_text("server: {host: 0.0.0.0}\n")
    told = hearth("key", "new", "anna", "--config", "open.yaml")
    assert (told.exit_code, "into open.yaml;" in told.stdout) == (0, True)
    none = hearth("key", "new", "anna")
    assert "there is no configuration file: make one with `hearth config example" in none.stdout


def test_the_first_key_of_a_service_is_in_its_file_and_its_digest_configured(hearth, tmp_path):
    file = tmp_path / "mine.yaml"
    started = ("serve", "--config", "mine.yaml", "--emulator", "--host", "192.0.2.1", "--first-key")
    file.write_text("queue: {max_external_depth: 5}\nauth:\n  keys: []  # none\n")
    made = hearth(*started, "first.key")
    assert (made.exit_code, "cannot listen on" in made.stderr) == (1, True)
    before = file.read_text()
    secret = (tmp_path / "first.key").read_text().strip()
    assert (
        (tmp_path / "first.key").stat().st_mode & 0o777,
        f'sha256: "{digest_of(secret)}"' in before,
    ) == (0o600, True)
    hearth(*started, "second.key")
    assert (file.read_text(), (tmp_path / "second.key").exists()) == (before, False)
    refused = hearth("serve", "--first-key", "third.key", "--emulator")
    assert (refused.exit_code, "needs a configuration file" in refused.stderr) == (1, True)


def test_a_rotated_key_has_a_new_secret_and_everything_else_stays(hearth, tmp_path):
    file = tmp_path / "config" / "llm_gateway.yaml"
    file.parent.mkdir()
    before = (
        "# mine\nrate_limits:\n  callers:\n    tv: {requests_per_minute: 3}\nauth:\n  keys:\n"
        f"    - name: tv  # upstairs\n      sha256: {B}  # made in May\n      may_lease: true\n"
    )
    file.write_text(before)
    shown = hearth("key", "rotate", "tv")
    (line,) = re.findall(r'sha256: "[0-9a-f]{64}"', shown.stdout)
    assert (shown.exit_code, file.read_text(), str(file) in shown.stdout) == (0, before, True)
    assert line != f'sha256: "{B}"'
    result = hearth("key", "rotate", "tv", "--write")
    (secret,) = re.findall(r"hearth_[A-Za-z0-9_-]{43}\b", result.stdout)
    assert (result.exit_code, "refuses the old one" in result.stdout) == (0, True)
    assert file.read_text() == before.replace(B, f'"{digest_of(secret)}"')


@pytest.mark.parametrize("args", [("rotate", "tv"), ("rotate", "tv", "--write"), ("revoke", "tv")])
def test_a_key_that_is_not_in_the_file_is_a_usage_error_with_those_that_are(hearth, tmp_path, args):
    missing = hearth("key", *args)
    assert (missing.exit_code, "no configuration file" in missing.stderr) == (2, True)
    file = tmp_path / "hearth.yaml"
    file.write_text(f"auth:\n  keys:\n    - name: phone\n      sha256: {B}\n")
    unknown = hearth("key", *args, "--config", "hearth.yaml")
    assert (unknown.exit_code, "no key of that name: phone" in unknown.stderr) == (2, True)
    assert "hearth_" not in unknown.output


@pytest.mark.parametrize("writes", [(), ("--write",)])
def test_a_key_from_the_environment_is_changed_there(hearth, tmp_path, writes):
    text = "auth:\n  keys:\n    - name: tv\n      key: ${TV_KEY}\n"
    (tmp_path / "hearth.yaml").write_text(text)
    args = ("rotate", "tv", "--config", "hearth.yaml", *writes)
    told = hearth("key", *args, TV_KEY="x" * 40)
    assert (told.exit_code, "from the environment (${TV_KEY})" in told.stderr) == (2, True)
    assert ("hearth_" in told.output, (tmp_path / "hearth.yaml").read_text()) == (False, text)


def test_the_older_spelling_does_the_same_and_stands_in_no_list(hearth):
    assert hearth("admin", "key", "--help").exit_code == 0
    assert made(hearth("admin", "key", "new", "tv"))[1]["name"] == "tv"
    listed = [line.split()[0] for line in hearth("admin", "--help").stdout.splitlines() if line]
    assert ("reload" in listed, "key" in listed) == (True, False)
    assert "\n  key " in hearth("--help").stdout


def test_an_edit_that_leaves_no_admin_key_says_so(hearth, tmp_path):
    (tmp_path / "hearth.yaml").write_text("{}\n")
    args = ("--config", "hearth.yaml")
    words = "no key has admin rights: make one with `hearth key new NAME --admin --write`"
    assert words in hearth("key", "new", "tv", "--write", *args).stdout
    assert words not in hearth("key", "new", "me", "--admin", "--write", *args).stdout
    assert words in hearth("key", "revoke", "me", *args).stdout
    assert "No key is left" in hearth("key", "revoke", "tv", *args).stdout
