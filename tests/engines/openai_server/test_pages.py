"""Pages about the models of servers with OpenAI's API."""

from __future__ import annotations

import pytest

from hearth.engines.openai_server.pages import Shown, ShownModel, page


@pytest.mark.parametrize(
    ("path", "status"),
    [("my%20model", 200), ("org%2Fm", 200), ("org/m", 200), ("org%252Fm", 404)],
)
def test_a_name_in_a_path_may_be_escaped(path: str, status: int):
    names = ("my model", "org/m")
    models = [ShownModel(name=name, owner="x", since_wall_s=0.0) for name in names]
    shown = Shown(title="Server", version="1", models=models)
    assert page(f"/v1/models/{path}", b"", shown).status == status
