"""Mutation testing: which small faults of a module its tests do not notice.

    python -m tests.mutants engine/scheduler/fair_share.py --tests tests/engine/scheduler

Each mutant changes one operator, constant, call or statement. Those tests run that execute the
changed line, in a fork of this process and in a copy of the tree, until the first one fails. A
mutant that fails none survives: it is printed as a diff. Either no test states what it breaks, or
it is equivalent: nobody could tell.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import difflib
import importlib
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

SLOWER = 2.0
LEAST_TIMEOUT_S = 20.0
"""A mutant's tests may take so much longer than they took before, and at least this long."""
PRELOADED = ("numpy", "torch", "transformers", "tokenizers", "jsonschema", "xgrammar")
"""What takes long to import and is none of our code: imported before the forks, where needed."""
OPTIONS = (
    *("-q", "-x", "--no-header", "-p", "no:cacheprovider"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # what is preloaded may be a plugin
)

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LOGGERS = frozenset({"log", "logger", "_log", "warnings"})


@dataclass(frozen=True)
class Mutant:
    """A module's text with one change."""

    first: int
    last: int
    """Lines of the text as it was, counted from 1."""
    text: str

    def diff(self, original: str, name: str) -> str:
        lines = difflib.unified_diff(
            original.splitlines(), self.text.splitlines(), name, name, lineterm="", n=1
        )
        return "\n".join(list(lines)[2:])


def mutants(source: str) -> list[Mutant]:
    """All mutants of a module, in the order of its lines."""
    found = {}
    for node, around in _mutable(ast.parse(source)):
        for changed in _changes(node, around):
            text = _spliced(source, node, changed)
            if text != source and _compiles(text):
                found[text] = Mutant(node.lineno, node.end_lineno or node.lineno, text)
    return sorted(found.values(), key=lambda mutant: (mutant.first, mutant.last, mutant.text))


def _mutable(node: ast.AST, around: str = "") -> Iterator[tuple[Any, str]]:
    """Nodes below ``node``, and itself, whose change may be seen when the program runs, each with
    the name of its function. No other value of a named constant is wrong: it is tuned."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)]) if name.isupper() and not around:
            return
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Assert() | ast.Import():
            return
        case ast.Expr(value=ast.Constant()) | ast.JoinedStr():  # docstrings and messages
            return
        case ast.keyword(arg="strict"):  # of ``zip``: a check, like an assertion
            return
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))) if (
            name in _LOGGERS
        ):
            return
    if hasattr(node, "lineno"):
        yield node, around
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        around = node.name
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "type_comment"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _mutable(child, around)


def _changes(node: ast.AST, around: str) -> Iterator[ast.AST]:
    """What may stand in a node's place, in the function ``around``."""
    match node:
        case ast.Compare(ops=ops):
            for place, op in enumerate(ops):
                yield _with(node, ops=[*ops[:place], _COMPARED[type(op)](), *ops[place + 1 :]])
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in _COMPUTED:
            yield _with(node, op=_COMPUTED[type(op)]())
        case ast.BoolOp(op=op):
            yield _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield ast.Constant(value * 2 if value else 1.0)
        case ast.Call(func=ast.Name(id=name)) if name in _CALLED:
            yield _with(node, func=ast.Name(_CALLED[name]))
        case ast.If(test=test) | ast.IfExp(test=test):
            yield _with(node, test=ast.UnaryOp(ast.Not(), test))
    if isinstance(node, ast.AugAssign | ast.Raise | ast.Continue | ast.Break | ast.Delete):
        yield ast.Pass()
    match node:
        case ast.Return(value=ast.expr()):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield ast.Pass()
        # Without one that sets up an object nothing works, which says little about the tests.
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) if around != "__init__":
            yield ast.Pass()


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _spliced(source: str, node: ast.expr | ast.stmt, changed: ast.AST) -> str:
    """Only what changes is written anew, so that a diff shows it: of a branch its condition."""
    if isinstance(node, ast.If) and isinstance(changed, ast.If):
        node, changed = node.test, changed.test
    lines = source.encode().splitlines(keepends=True)
    begin = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: (node.end_lineno or node.lineno) - 1])) + (node.end_col_offset or 0)
    text = ast.unparse(ast.fix_missing_locations(changed))
    written = f"({text})" if isinstance(changed, ast.expr) and _needs_parentheses(node) else text
    whole = b"".join(lines)
    return (whole[:begin] + written.encode() + whole[end:]).decode()


def _needs_parentheses(node: ast.AST) -> bool:
    """An atom's place has room for an atom; elsewhere an operator may stand beside it."""
    return isinstance(node, ast.BinOp | ast.BoolOp | ast.Compare | ast.IfExp | ast.UnaryOp)


def _compiles(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(text, "mutant", "exec")
        except SyntaxError:
            return False
    return True


@dataclass
class Run:
    """What the tests did before any change."""

    seconds: dict[str, float] = field(default_factory=dict)
    """By the id of each test that passed."""
    lines: dict[str, set[int]] = field(default_factory=dict)
    """Of the module, by the test that executed them."""
    imported: set[int] = field(default_factory=set)
    """Lines that are executed outside of tests: by imports and by collection."""
    modules: list[str] = field(default_factory=list)

    def tests_of(self, mutant: Mutant) -> list[str]:
        touched = set(range(mutant.first, mutant.last + 1))
        if touched & self.imported and not any(touched & seen for seen in self.lines.values()):
            return list(self.seconds)
        return [name for name, seen in self.lines.items() if seen & touched]


class Tracer:
    """A plugin that notes which lines of one file each test executes, also in its threads."""

    def __init__(self, file: Path) -> None:
        self.run = Run()
        self._file = str(file)
        self._seen: set[int] = self.run.imported

    def start(self) -> None:
        threading.settrace(self._called)
        sys.settrace(self._called)

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._step if frame.f_code.co_filename == self._file else None

    def _step(self, frame: FrameType, event: str, argument: object) -> Any:
        self._seen.add(frame.f_lineno)
        return self._step

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._seen = self.run.lines.setdefault(item.nodeid, set())
        began = time.monotonic()
        result = yield
        self.run.seconds[item.nodeid] = time.monotonic() - began
        return result


class Selection:
    """A plugin that runs some of the collected tests, files that take little first."""

    def __init__(self, chosen: dict[str, float]) -> None:
        self._chosen = chosen

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self._chosen]
        cost_s: dict[str, float] = defaultdict(float)
        for item in chosen:
            cost_s[_file_of(item.nodeid)] += self._chosen[item.nodeid]
        items[:] = sorted(chosen, key=lambda item: cost_s[_file_of(item.nodeid)])


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def in_fork(work: Callable[[], int], timeout_s: float) -> int | None:
    """The exit status of ``work`` in a process group of its own, which ends with it; None if it
    takes longer."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.setpgid(0, 0)
            said = os.open("said.txt", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            for number in range(1, 3):
                os.dup2(said, number)
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    ends = time.monotonic() + timeout_s
    status = None
    while status is None and time.monotonic() < ends:
        done, status_word = os.waitpid(child, os.WNOHANG)
        if done:
            status = os.waitstatus_to_exitcode(status_word)
        else:
            time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if status is None:
        os.waitpid(child, 0)
    return status


class Bench:
    """A copy of the tree in which one module is changed, and the tests that run there."""

    def __init__(self, root: Path, module: str, tests: Sequence[str]) -> None:
        self._module = root / module
        self._original = self._module.read_text()
        self._tests = tests
        self._root = root
        self._written = 0
        self._before = Run()

    def run_unchanged(self) -> Run:
        """Raises RuntimeError if a test fails, also where it runs as those of a mutant do."""
        told = self._root / "run.pickle"

        def work() -> int:
            tracer = Tracer(self._module)
            tracer.start()
            code = pytest.main([*OPTIONS, *self._tests], plugins=[tracer])
            sys.settrace(None)
            tracer.run.modules = [name for name in PRELOADED if name in sys.modules]
            told.write_bytes(pickle.dumps(tracer.run))
            return int(code)

        self._must_pass(in_fork(work, timeout_s=3600))
        self._before = pickle.loads(told.read_bytes())
        for name in self._before.modules:
            importlib.import_module(name)
        self._must_pass(self._run(self._original, self._before.seconds))
        return self._before

    def _must_pass(self, status: int | None) -> None:
        if status != pytest.ExitCode.OK:
            said = (self._root / "said.txt").read_text()
            raise RuntimeError(f"without any change the tests end with {status}: {said}")

    def kills(self, mutant: Mutant) -> bool:
        seconds = self._before.seconds
        chosen = {name: seconds[name] for name in self._before.tests_of(mutant)}
        return bool(chosen) and self._run(mutant.text, chosen) != pytest.ExitCode.OK

    def _run(self, text: str, chosen: dict[str, float]) -> int | None:
        """How the chosen tests end if the module has this text; None if they do not in time."""
        self._write(text)
        files = sorted(set(map(_file_of, chosen)))
        timeout_s = LEAST_TIMEOUT_S + SLOWER * sum(chosen.values())

        def work() -> int:
            return int(pytest.main([*OPTIONS, *files], plugins=[Selection(chosen)]))

        try:
            return in_fork(work, timeout_s)
        finally:
            self._write(self._original)

    def _write(self, text: str) -> None:
        """With a time of its own, by which Python knows that compiled code is out of date."""
        self._module.write_text(text)
        self._written += 1
        os.utime(self._module, (self._written, self._written))


def copy_tree(target: Path) -> None:
    """Every file that git knows or would take."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if Path(name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(name, target / name)


def main(arguments: Sequence[str] | None = None) -> int:
    """The number of survivors, 100 at most."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("module", help="the file to change: engine/scheduler/fair_share.py")
    parser.add_argument("--tests", nargs="+", required=True, help="what pytest is to run")
    parser.add_argument("--sample", type=int, help="try so many of all mutants")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default: 0)")
    parser.add_argument("--lines", type=int, nargs="+", help="try those of some lines only")
    options = parser.parse_args(arguments)

    source = Path(options.module).read_text()
    lines = options.lines
    tried = [m for m in mutants(source) if lines is None or m.first in lines]
    if options.sample is not None and options.sample < len(tried):
        chosen = random.Random(options.seed).sample(range(len(tried)), options.sample)
        tried = [tried[place] for place in sorted(chosen)]
    home = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="sluice-mutants-") as name:
        copy_tree(Path(name))
        os.chdir(name)
        os.environ["PYTHONPATH"] = name
        sys.modules.pop("tests", None)  # of the tree that this was started in
        sys.path[:] = [name, *(path for path in sys.path if path not in ("", str(home)))]
        try:
            survivors = _try_all(Bench(Path(name), options.module, options.tests), tried)
        finally:
            os.chdir(home)
    for mutant in survivors:
        print(mutant.diff(source, options.module))
    killed = len(tried) - len(survivors)
    rate = 100 * killed / max(len(tried), 1)
    print(f"{options.module}: {len(tried)} mutants, {killed} killed ({rate:.1f} %)")
    return min(len(survivors), 100)


def _try_all(bench: Bench, tried: Sequence[Mutant]) -> list[Mutant]:
    began = time.monotonic()
    before = bench.run_unchanged()
    print(f"{len(before.seconds)} tests, {time.monotonic() - began:.0f} s; {len(tried)} mutants")
    survivors = []
    for mutant in tried:
        killed = bench.kills(mutant)
        print("." if killed else "S", end="", flush=True)
        if not killed:
            survivors.append(mutant)
    print(f"\n{time.monotonic() - began:.0f} s")
    return survivors


if __name__ == "__main__":
    raise SystemExit(main())
