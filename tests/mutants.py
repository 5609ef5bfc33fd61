"""Mutation testing: which small faults of a module its tests do not notice.

    python -m tests.mutants engine/scheduler/fair_share.py --tests tests/engine/scheduler

Each mutant changes one operator, constant, call or statement of a function. The tests are collected
once. For each mutant, a fork of this process gives the function its changed code and runs the tests
that execute the changed line, quick ones first, until one fails. A mutant that fails none survives:
it is printed as a diff. Either no test states what it breaks, or it is equivalent: nobody could
tell. Programs that tests start have the code as it was.

With ``--every``, all of those tests run for each mutant, and the tests are named without which as
many mutants would be noticed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import difflib
import gc
import os
import pickle
import random
import signal
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
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests import postgres

SLOWER = 5.0
LEAST_TIMEOUT_S = 10.0
"""A mutant's test may take so much longer than it took before, and at least this long."""
OPTIONS = ("-q", "-s", "--no-header", "-p", "no:cacheprovider")

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
    """Nodes of functions below ``node``, and itself, whose change may be seen when the program
    runs, each with the name of its function."""
    match node:
        case ast.Assert() | ast.Import():
            return
        case ast.Expr(value=ast.Constant()) | ast.JoinedStr():  # docstrings and messages
            return
        case ast.keyword(arg="strict"):  # of ``zip``: a check, like an assertion
            return
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))) if (
            name in _LOGGERS
        ):
            return
    if around and hasattr(node, "lineno"):
        yield node, around
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        around = node.name
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "type_comment"):
            continue
        if isinstance(value, ast.arguments):  # defaults are made when a module is imported
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
    lines: dict[str, dict[str, set[int]]] = field(default_factory=dict)
    """By test and file: the lines that were executed."""
    failed: list[str] = field(default_factory=list)


class Tracer:
    """A plugin that notes which lines of some files the tests execute, also in their threads."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = {str(file.resolve()): str(file) for file in files}
        self._seen: dict[str, set[int]] = {}
        self._set_up: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        yield
        for file, lines in self._seen.items():
            self._set_up[_file_of(item.nodeid)][file] |= lines

    def share_fixtures(self, lines_of: dict[str, dict[str, set[int]]]) -> None:
        """What the first test of a file has set up may be what the others look at."""
        for name, lines in lines_of.items():
            for file, more in self._set_up[_file_of(name)].items():
                lines[file] = lines.get(file, set()) | more

    def lines_of(self, work: Callable[[], None]) -> dict[str, set[int]]:
        self._seen = defaultdict(set)
        threading.settrace(self._called)
        sys.settrace(self._called)
        try:
            work()
        finally:
            sys.settrace(None)
            threading.settrace(None)
        return dict(self._seen)

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        file = self._files.get(frame.f_code.co_filename)
        if file is None:
            return None
        seen = self._seen[file]

        def step(frame: FrameType, event: str, argument: object) -> Any:
            seen.add(frame.f_lineno)
            return step

        return step


class Bench:
    """A plugin of pytest that, in place of running the tests, does some work with them."""

    def __init__(self, files: Sequence[Path], work: Callable[[Bench], None]) -> None:
        self._files = files
        self._work = work
        self._items: dict[str, pytest.Item] = {}
        self._told = tempfile.TemporaryDirectory(prefix="sluice-mutants-")
        self._plugins: pytest.PytestPluginManager
        self.databases: list[str] = []
        """That tests have in PostgreSQL, if any do."""
        self.before = Run()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Raises RuntimeError if a test fails without any change."""
        if session.testsfailed:
            raise session.Interrupted("not all tests can be collected")
        self._items = {item.nodeid: item for item in session.items}
        self._plugins = session.config.pluginmanager
        if any("postgres_server" in vars(item)["fixturenames"] for item in session.items):
            self.databases = postgres.databases_of(session.config)
        ends = time.monotonic() + 3600
        self._in_fork(self._run_unchanged, lambda: ends)
        self.before = pickle.loads(self._file("run").read_bytes())
        if self.before.failed:
            said = self._file("said").read_text()
            raise RuntimeError(f"without any change they fail: {self.before.failed}: {said}")
        self._work(self)
        self._told.cleanup()
        return True

    def _file(self, name: str) -> Path:
        return Path(self._told.name) / name

    def _run_unchanged(self) -> None:
        run, tracer = Run(), Tracer(self._files)
        self._plugins.register(tracer)
        for name, reports in self._reports(list(self._items), run, tracer):
            if any(report.failed for report in reports):
                run.failed.append(name)
        tracer.share_fixtures(run.lines)
        self._file("run").write_bytes(pickle.dumps(run))

    def _reports(
        self, names: Sequence[str], run: Run | None = None, tracer: Tracer | None = None
    ) -> Iterator[tuple[str, list[Any]]]:
        items = [self._items[name] for name in names]
        reports: list[Any] = []
        for item, following in zip(items, [*items[1:], None], strict=True):

            def work(item: pytest.Item = item, following: pytest.Item | None = following) -> None:
                reports[:] = runtestprotocol(item, nextitem=following, log=False)

            if run is None or tracer is None:
                work()
            else:
                began = time.monotonic()
                lines = tracer.lines_of(work)
                if not any(report.skipped for report in reports):
                    run.seconds[item.nodeid] = time.monotonic() - began
                    run.lines[item.nodeid] = lines
            yield item.nodeid, reports

    def tests_of(self, file: str, lines: set[int]) -> list[str]:
        """Those that execute any of a file's lines, quick ones first."""
        lines_of = self.before.lines
        found = [name for name in lines_of if lines_of[name].get(file, set()) & lines]
        return sorted(found, key=self.before.seconds.__getitem__)

    def killers(
        self, names: Sequence[str], change: Callable[[], object], *, every: bool = False
    ) -> list[str]:
        """Which of some tests fail once ``change`` was called: the first, unless ``every`` is set.
        The one at which its time is over has failed as well."""
        told = self._file("told")
        told.write_text("")

        def work() -> None:
            with told.open("a", buffering=1) as lines:
                change()
                for name, reports in self._reports(names):
                    is_killer = any(report.failed for report in reports)
                    lines.write(f"{'failed' if is_killer else 'passed'} {name}\n")
                    if is_killer and not every:
                        return

        num_ended, began = 0, time.monotonic()

        def deadline() -> float:
            nonlocal num_ended, began
            if (count := told.read_text().count("\n")) > num_ended:
                num_ended, began = count, time.monotonic()
            name = names[min(num_ended, len(names) - 1)]
            return began + LEAST_TIMEOUT_S + SLOWER * self.before.seconds[name]

        has_ended = not names or self._in_fork(work, deadline)
        ends = [line.split(" ", 1) for line in told.read_text().splitlines()]
        found = [name for end, name in ends if end == "failed"]
        if not has_ended and len(ends) < len(names):
            found.append(names[len(ends)])
        return found

    def _in_fork(self, work: Callable[[], None], deadline: Callable[[], float]) -> bool:
        """Do it in a process group of its own, which ends with it. Whether it came to its end."""
        for dsn in self.databases:
            postgres.empty(dsn)  # of what a test has left that was ended
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            code = 70
            try:
                os.setpgid(0, 0)
                said = os.open(self._file("said"), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
                for number in range(1, 3):
                    os.dup2(said, number)
                work()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        status = None
        while status is None and time.monotonic() < deadline():
            done, word = os.waitpid(child, os.WNOHANG)
            if done:
                status = os.waitstatus_to_exitcode(word)
            else:
                time.sleep(0.003)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if status is None:
            os.waitpid(child, 0)
        return status == 0


class Module:
    """A file whose functions can be given the code of a mutant."""

    def __init__(self, file: Path) -> None:
        self.name = str(file)
        self.source = file.read_text()
        self._file = str(file.resolve())
        self._codes = self._compiled(self.source)
        self._functions: dict[tuple[str, int], list[FunctionType]] = defaultdict(list)

    def find_functions(self) -> None:
        """Those that live by now."""
        gc.unfreeze()
        for found in gc.get_objects():
            if type(found) is FunctionType and found.__code__.co_filename == self._file:
                code = found.__code__
                self._functions[code.co_qualname, code.co_firstlineno].append(found)
        gc.freeze()

    def changes_of(self, mutant: Mutant) -> list[tuple[FunctionType, CodeType]]:
        """The functions that become others, and how. None where no test imports them, or where
        their code must keep what it takes from around it."""
        changed = self._compiled(mutant.text)
        return [
            (function, changed[place])
            for place, code in self._codes.items()
            if place in changed and _meaning(code) != _meaning(changed[place])
            if len(code.co_freevars) == len(changed[place].co_freevars)
            for function in self._functions[code.co_qualname, code.co_firstlineno]
        ]

    def _compiled(self, text: str) -> dict[tuple[str, int], CodeType]:
        """All code objects by their names, of which several may have the same."""
        found: dict[tuple[str, int], CodeType] = {}
        num_named: dict[str, int] = defaultdict(int)
        left = [compile(text, self._file, "exec")]
        while left:
            code = left.pop()
            found[code.co_qualname, num_named[code.co_qualname]] = code
            num_named[code.co_qualname] += 1
            left += reversed([part for part in code.co_consts if isinstance(part, CodeType)])
        return found


def _meaning(code: CodeType) -> tuple[object, ...]:
    """All of it but the lines where it stands."""
    consts = [
        _meaning(part) if isinstance(part, CodeType) else (type(part), part)
        for part in code.co_consts
    ]
    return (code.co_code, code.co_names, code.co_varnames, code.co_freevars, consts)


def _apply(changes: Sequence[tuple[FunctionType, CodeType]]) -> None:
    for function, code in changes:
        function.__code__ = code


def main(arguments: Sequence[str] | None = None) -> int:
    """The number of survivors, 100 at most."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("modules", nargs="+", type=Path, help="the files to change")
    parser.add_argument("--tests", nargs="+", required=True, help="what pytest is to run")
    parser.add_argument("--sample", type=int, default=10**6, help="try so many of each module")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default: 0)")
    parser.add_argument("--every", action="store_true", help="name the tests that add nothing")
    options = parser.parse_args(arguments)
    survivors = 0

    def work(bench: Bench) -> None:
        nonlocal survivors
        kills: list[list[str]] = []
        for module in map(Module, options.modules):
            module.find_functions()
            tried = _sampled(mutants(module.source), options.sample, options.seed)
            found = _try_all(bench, module, tried, every=options.every)
            survivors += sum(not names for names in found)
            kills += found
        if options.every:
            for name in _needless(bench, kills):
                print(f"adds nothing: {name}")

    ended = pytest.main([*OPTIONS, *options.tests], plugins=[Bench(options.modules, work)])
    if ended not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(f"the tests end with {ended}")
    return min(survivors, 100)


def _sampled(found: list[Mutant], count: int, seed: int) -> list[Mutant]:
    chosen = random.Random(seed).sample(range(len(found)), min(count, len(found)))
    return [found[place] for place in sorted(chosen)]


def _try_all(
    bench: Bench, module: Module, tried: Sequence[Mutant], *, every: bool
) -> list[list[str]]:
    """The tests that notice each."""
    began, survivors, found = time.monotonic(), [], []
    for mutant in tried:
        changes = module.changes_of(mutant)
        names = bench.tests_of(module.name, set(range(mutant.first, mutant.last + 1)))
        if names and not changes:
            continue
        killers = bench.killers(names, lambda: _apply(changes), every=every)  # noqa: B023
        found.append(killers)
        if not killers:
            survivors.append(mutant)
        print("." if killers else "S", end="", flush=True)
    print()
    for mutant in survivors:
        print(mutant.diff(module.source, module.name))
    killed = len(found) - len(survivors)
    rate = 100 * killed / max(len(found), 1)
    seconds = time.monotonic() - began
    print(f"{module.name}: {len(found)} mutants, {killed} killed ({rate:.1f} %), {seconds:.0f} s")
    return found


def _needless(bench: Bench, kills: Sequence[Sequence[str]]) -> list[str]:
    """The functions of tests without which each mutant has a killer still; slow ones go first."""
    seconds: dict[str, float] = defaultdict(float)
    for name, taken in bench.before.seconds.items():
        seconds[_function_of(name)] += taken
    left = [set(map(_function_of, names)) for names in kills if names]
    found = []
    for name in sorted(seconds, key=lambda name: -seconds[name]):
        if all(names != {name} for names in left):
            found.append(name)
            for names in left:
                names.discard(name)
    return sorted(found)


def _function_of(test: str) -> str:
    return test.partition("[")[0]


def _file_of(test: str) -> str:
    return test.partition("::")[0]


if __name__ == "__main__":
    raise SystemExit(main())
