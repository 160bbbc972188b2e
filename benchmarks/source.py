"""`source`: how large the code is, and how much of it one stream passes.

Size is counted in tokens: Python's, without comments, docstrings, imports and ends of lines.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeGuard

import hearth
from benchmarks import stream_path
from benchmarks.findings import Finding

SOURCE = Path(hearth.__file__).parent
TESTS = Path(__file__).parents[1] / "tests"
WIDTH = 100
MOST_LINES = 50
"""Of a function."""
REQUEST = "ActiveRequest"
OLLAMAS_OWN = {"engines", "emulator", "dialects"}
_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def measure(_rounds: int, folder: Path) -> list[Finding]:
    texts = {path: path.read_text("utf-8") for path in sorted(SOURCE.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lines = [token_lines(text) for text in texts.values()]
    tokens = sum(map(len, lines))
    of_tests = sum(len(token_lines(path.read_text("utf-8"))) for path in TESTS.rglob("*.py"))
    wide = [line for text in texts.values() for line in text.splitlines() if len(line) > WIDTH]
    long = [name for tree in trees.values() for name in long_functions(tree)]
    fields = frozenset().union(*map(fields_of_request, trees.values()))
    writers = [path for path, tree in trees.items() if fields & set(written(tree))]
    naming = [path for path, text in texts.items() if names_ollama(path, text)]
    return [
        _finding("tokens of src", tokens, 271_061),
        _finding("tokens on a line that holds code", tokens / sum(map(len, map(set, lines))), 8.3),
        _finding(f"lines over {WIDTH} columns", len(wide), 0),
        _finding(f"functions over {MOST_LINES} lines", len(long), 0, note=", ".join(long)),
        _finding("tokens of tests", of_tests, 410_968),
        _finding(f"fields of {REQUEST}", len(fields), 12),
        _finding("modules that write them", len(writers), 2, note=_listed(writers)),
        _finding("modules that name Ollama", len(naming), 12, note=_listed(naming)),
        *_stream(folder, "plain", interrupted=False),
        *_stream(folder, "interrupted", interrupted=True),
    ]


def _stream(folder: Path, kind: str, *, interrupted: bool) -> Iterator[Finding]:
    modules = stream_path.modules_of_calls(folder, interrupted=interrupted)
    yield _finding(f"functions that one {kind} stream passes", len(modules))
    yield _finding(f"modules of {kind} stream", len(set(modules)))
    yield _finding(f"returns of {kind} stream to a module", stream_path.returns(modules))


def _finding(name: str, measured: float, target: float | None = None, note: str = "") -> Finding:
    return Finding(
        subject="source", name=name, unit="", measured=measured, target=target, note=note
    )


def _listed(paths: Iterable[Path]) -> str:
    return ", ".join(str(path.relative_to(SOURCE)) for path in paths)


def token_lines(text: str) -> list[int]:
    """The line of each token that counts."""
    left_out = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom) or _is_docstring(node):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found = [token.start[0] for token in tokens if token.type not in _LAYOUT]
    return [line for line in found if line not in left_out]


def _is_docstring(node: ast.AST) -> TypeGuard[ast.Expr]:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def long_functions(tree: ast.Module) -> list[str]:
    """The names of those that are longer than `MOST_LINES`."""
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= MOST_LINES
    ]


def fields_of_request(tree: ast.Module) -> frozenset[str]:
    """Empty for a module without that class."""
    return frozenset(
        field.target.id
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == REQUEST
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    )


def written(tree: ast.Module) -> Iterator[str]:
    """Attributes of requests that a module assigns: by the name that they have everywhere, or
    within their class.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == REQUEST:
            yield from _assigned(node, "self")
    yield from _assigned(tree, "work")


def _assigned(tree: ast.AST, name: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == name
        ):
            yield node.attr


def names_ollama(path: Path, text: str) -> bool:
    """Apart from Ollama's adapter, the emulator and the wire formats."""
    return path.relative_to(SOURCE).parts[0] not in OLLAMAS_OWN and "ollama" in text.lower()
