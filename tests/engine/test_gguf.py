"""The model that the engine tests run on is the same one every time."""

from __future__ import annotations

from tests.engine.gguf import write_model


def test_the_same_seed_writes_the_same_bytes_and_another_seed_others(tmp_path):
    for name, seed in (("one", 1), ("again", 1), ("two", 2)):
        write_model(tmp_path / name, seed=seed)

    assert (tmp_path / "one").read_bytes() == (tmp_path / "again").read_bytes()
    assert (tmp_path / "one").read_bytes() != (tmp_path / "two").read_bytes()
