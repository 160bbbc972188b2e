"""`hearth backup` and `hearth restore`, beside a gateway that runs and one that does not."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

from tests.cli.conftest import serving
from tests.support.cases import for_each

REQUEST = json.dumps({"request": {"model": "llama3.1:8b", "prompt": "why?"}, "not_before": "2100-01-01T00:00:00Z"})


def test_a_copy_made_while_the_gateway_runs_brings_its_jobs_back(hearth, tmp_path):
    store, config = tmp_path / "state" / "hearth.db", tmp_path / "config" / "llm_gateway.yaml"
    config.parent.mkdir()
    config.write_text(f"storage: {{path: {store}}}\nbackend: {{mode: ollama}}\n")
    with serving(config) as (url, _):
        kept = hearth("jobs", "submit", "--url", url, input=REQUEST).stdout
        saved = hearth("backup", "copy.db")
        assert saved.exit_code == 0, saved.output
        assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600
        hearth("jobs", "submit", "--url", url, input=REQUEST)
        busy = hearth("restore", "copy.db")
        assert (busy.exit_code, "in use by process" in busy.stderr) == (1, True)
    assert hearth("backup", "copy.db").exit_code == 2
    restored = hearth("restore", "copy.db")
    assert restored.exit_code == 0, restored.output
    assert f"the former store is {store}.before-restore." in restored.stdout
    assert not store.with_name("hearth.db-wal").exists()
    with serving(config) as (url, _):
        listed = json.loads(hearth("jobs", "list", "--json", "--url", url).stdout)["jobs"]
    assert [each["id"] for each in listed] == [kept.partition(":")[0]]
    store.with_name("hearth.db-wal").write_bytes(b"left by a crash")  # it belongs to the store that is moved away
    assert hearth("restore", "copy.db").exit_code == 0
    assert store.with_name("hearth.db.before-restore.1-wal").read_bytes() == b"left by a crash"
    with closing(sqlite3.connect(f"{store}.before-restore")) as former:
        assert former.execute("SELECT count(*) FROM jobs").fetchone() == (2,)
    assert (tmp_path / "state" / "hearth.db.before-restore.1").exists()
    assert hearth("backup", "copy.db", "--force").exit_code == 0


@for_each(
    ("content", "says"),
    [
        (None, "there is no file"),
        (b"not a database, but as long as the header of one would be" * 9, "is not a valid SQLite database"),
        (b"", "another program"),
    ],
)
def test_what_is_no_copy_of_ours_is_refused_and_the_store_stays(hearth, tmp_path, content, says):
    store = tmp_path / ".local" / "state" / "hearth" / "hearth.db"
    store.parent.mkdir(parents=True, exist_ok=True)
    store.write_bytes(b"mine")
    copy = tmp_path / "copy.db"
    if content is not None:
        copy.write_bytes(content)
    result = hearth("restore", "copy.db")
    assert (result.exit_code, store.read_bytes()) == (2, b"mine")
    assert says in result.stderr
    assert not store.with_name("hearth.db.new").exists()


def test_without_a_store_there_is_nothing_to_copy(hearth, tmp_path):
    assert hearth("backup", "copy.db").exit_code == 2
    (tmp_path / "off.yaml").write_text("storage: {enabled: false}\n")
    for command in ("backup", "restore"):
        result = hearth(command, "copy.db", "--config", "off.yaml")
        assert (result.exit_code, "storage.enabled is off" in result.stderr) == (1, True)
    assert not (tmp_path / "copy.db").exists()
