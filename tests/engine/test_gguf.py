"""The model that the engine tests run on is the same one every time."""

from __future__ import annotations

from tests.engine.gguf import write_model


def test_the_same_bytes_are_written_every_time(tmp_path):
    for name in ("one", "again"):
        write_model(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "again").read_bytes()
