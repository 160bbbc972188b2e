"""What counts of the code, and as what."""

from __future__ import annotations

import ast

import pytest

from benchmarks.source import SOURCE, fields_of_request, long_functions, token_lines, written
from benchmarks.stream_path import returns


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('"""Said."""\n\nimport os\nfrom os import (\n    path,\n)\n', []),
        ("x = 1  # why\n\ny = f(\n    2,\n)\n", [1, 1, 1, 3, 3, 3, 3, 4, 4, 5]),
        ('def f():\n    """Said."""\n    return "text"\n', [1, 1, 1, 1, 1, 3, 3]),
    ],
)
def test_only_tokens_of_code_count(text: str, lines: list[int]):
    assert token_lines(text) == lines


def test_a_function_is_long_from_its_fifty_first_line_on():
    body = "    pass\n"
    assert long_functions(ast.parse(f"def f():\n{body * 49}")) == []
    assert long_functions(ast.parse(f"async def f():\n{body * 50}")) == ["f"]


def test_functions_have_50_lines_and_modules_500_with_code_at_most():
    long = []
    for path in SOURCE.rglob("*.py"):
        text = path.read_text("utf-8")
        long += [f"{path}: {name}" for name in long_functions(ast.parse(text))]
        if text.count("\n") > 500 and len(set(token_lines(text))) > 500:
            long.append(str(path))
    assert long == []


def test_a_request_is_written_by_its_class_and_by_the_name_that_all_have_for_it():
    tree = ast.parse(
        "class ActiveRequest:\n"
        "    model: str\n"
        "    outcome: str = ''\n"
        "    def end(self):\n"
        "        self.outcome = 'x'\n"
        "class Other:\n"
        "    def end(self, work):\n"
        "        self.model = work.outcome\n"
        "        work.sent += 1\n"
        "        work.attempt.error = 2\n"
    )
    assert fields_of_request(tree) == {"model", "outcome"}
    assert set(written(tree)) == {"outcome", "sent"}


def test_a_return_goes_to_a_module_that_was_left():
    assert returns(["a", "a", "b", "a", "c", "b", "b"]) == 2
    assert returns([]) == 0
