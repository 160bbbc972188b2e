"""What was learned survives a restart; what cannot be read was never learned."""

from __future__ import annotations

import pytest

from tests.storage.conftest import written


async def test_the_last_document_of_a_name_is_kept(store):
    store.estimates.save("swaps", {"a": 1.5})
    store.estimates.save("swaps", {"a": [2, None, {"b": True}]})
    store.estimates.save("services", {})
    await written(store)
    assert await store.estimates.load("swaps") == {"a": [2, None, {"b": True}]}
    assert await store.estimates.load("services") == {}
    assert await store.estimates.load("unknown") is None


@pytest.mark.parametrize("document", [{"a": object()}, {"a": float("nan")}])
async def test_only_plain_values_are_taken(store, document):
    with pytest.raises((TypeError, ValueError)):
        store.estimates.save("swaps", document)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
async def test_a_document_that_cannot_be_read_counts_as_never_learned(store, text):
    await store.writer.submit(lambda connection: connection.execute("INSERT INTO estimates VALUES ('swaps', ?, 0)", (text,)).rowcount)
    assert await store.estimates.load("swaps") is None
