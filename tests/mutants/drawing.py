"""Small defects, drawn at random from every line of the source.

None is written down, so none pins how a line is spelled.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

N = TypeVar("N", bound=ast.AST)
_OPPOSITES: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.Continue: ast.Break, ast.Break: ast.Continue,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One changed expression or statement.

    Attributes:
        path: of the module, below the source; line: where, from 1; was, became: its source; text:
        the whole module with the change.
    """

    path: str
    line: int
    was: str
    became: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.was} -> {self.became}"


def drawn(source: Path, count: int, seed: int) -> list[Mutant]:
    """`count` mutants of the modules below `source`, each place as likely as any other; the same
    for the same source and seed.
    """
    places = [
        (path, number)
        for path in sorted(source.rglob("*.py"))
        for number in range(len(list(_changes(ast.parse(path.read_text())))))
    ]
    return [
        _mutant(source, path, number) for path, number in random.Random(seed).sample(places, count)
    ]


def _mutant(source: Path, path: Path, number: int) -> Mutant:
    tree = ast.parse(path.read_text())
    node, changed = list(_changes(tree))[number]
    was = ast.unparse(node)
    text = ast.unparse(ast.fix_missing_locations(_Replace(node, changed).visit(tree)))
    return Mutant(str(path.relative_to(source)), node.lineno, was, ast.unparse(changed), text)


def _changes(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, ast.expr | ast.stmt]]:
    """Every node that can be changed, with what it becomes."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(ops=[operator, *_]) if type(operator) in _OPPOSITES:
                yield node, _with(node, ops=[_OPPOSITES[type(operator)](), *node.ops[1:]])
            case ast.BoolOp() | ast.BinOp() if type(node.op) in _OPPOSITES:
                yield node, _with(node, op=_OPPOSITES[type(node.op)]())
            case ast.UnaryOp(op=ast.Not()):
                yield node, node.operand
            case ast.Constant(value=bool() | int() | float()):
                value: Any = node.value
                other = not value if isinstance(value, bool) else value + 1
                yield node, _with(node, value=other)
            case ast.If():
                yield node, _with(node, test=ast.Constant(value=False))
            case ast.Return(value=ast.expr()):
                yield node, _with(node, value=ast.Constant(value=None))
            case ast.Expr(value=ast.Call() | ast.Await()):
                yield node, ast.copy_location(ast.Pass(), node)
            case ast.Continue():
                yield node, ast.copy_location(ast.Break(), node)


def _with(node: N, **fields: object) -> N:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


class _Replace(ast.NodeTransformer):
    def __init__(self, node: ast.AST, changed: ast.AST) -> None:
        self._node = node
        self._changed = changed

    def visit(self, node: ast.AST) -> ast.AST:
        return self._changed if node is self._node else self.generic_visit(node)
