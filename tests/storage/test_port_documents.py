"""Documents in any store."""

from __future__ import annotations

import pytest


async def test_the_last_document_of_a_name_is_kept_also_for_the_next_process(process):
    first = await process()
    first.documents.save("swaps", {"a": 1.5})
    first.documents.save("swaps", {"a": [2, None, {"b": True}]})
    first.documents.save("services", {})
    await first.written()
    assert await first.documents.load("services") == {}
    second = await process()
    assert await second.documents.load("swaps") == {"a": [2, None, {"b": True}]}
    assert await second.documents.load("services") == {}
    assert await second.documents.load("unknown") is None


async def test_what_is_kept_is_on_the_disk_at_once_after_what_was_saved(process):
    first = await process()
    first.documents.save("orders", {"a": 1})
    await first.documents.keep("orders", {"a": 2})
    assert await (await process()).documents.load("orders") == {"a": 2}


@pytest.mark.parametrize("document", [{"a": object()}, {"a": float("nan")}])
def test_what_is_no_plain_json_is_refused(ports, document):
    with pytest.raises((TypeError, ValueError)):
        ports.documents.save("swaps", document)
