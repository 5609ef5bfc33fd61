"""What ops state of their arguments, against the calls of them and the map in the README."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels import build

ROOT = build.SOURCES.parent.parent
README = (ROOT / "kernels" / "README.md").read_text()
NAMED = re.compile(r"^  (IN|OPTIONAL|OUT|ARG|ARG_OR|NESTED)\(([\w* :]+?), (\w+)", re.MULTILINE)


def structs() -> dict[str, str]:
    """The fields of each struct that states arguments."""
    text = "\n".join(path.read_text() for path in build.SOURCES.rglob("*.cuh"))
    return dict(
        re.findall(
            r"^struct (\w+) \{\n  ARGUMENTS\(\1\);\n(.*?)^\};", text, re.MULTILINE | re.DOTALL
        )
    )


def arguments(struct: str) -> dict[str, str]:
    """The kind of each argument that Python may pass."""
    found: dict[str, str] = {}
    for kind, field_type, name in NAMED.findall(structs()[struct]):
        found.update(arguments(field_type) if kind == "NESTED" else {name: kind})
    return found


def ops() -> dict[str, dict[str, str]]:
    text = "\n".join(path.read_text() for path in build.host_sources())
    return {
        op: arguments(struct)
        for op, struct in re.findall(r"^OP\((\w+), (\w+)\)", text, re.MULTILINE)
    }


OPS = ops()


def calls() -> Iterator[tuple[Path, ast.Call, str]]:
    for folder in ("kernels", "engine", "tests/kernels", "tests/engine"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                    continue
                owner = ast.unparse(node.func.value)
                if owner in ("native", "cuda.native") and node.func.attr in OPS:
                    yield path, node, node.func.attr


def test_ops_are_called_with_their_arguments() -> None:
    """Where there is no GPU, nothing else looks at these names."""
    assert len(OPS) > 30
    seen = set()
    for path, call, op in calls():
        place = f"{path.relative_to(ROOT)}:{call.lineno}: {op}"
        seen.add(op)
        by_position = [name for name, kind in OPS[op].items() if kind != "OUT"]
        given = {keyword.arg for keyword in call.keywords} - {None}
        assert given <= OPS[op].keys(), f"{place} has no {given - OPS[op].keys()}"
        if any(isinstance(argument, ast.Starred) for argument in call.args):
            continue
        passed = by_position[: len(call.args)]
        assert not given & set(passed), f"{place} gets {given & set(passed)} twice"
        if all(keyword.arg for keyword in call.keywords):
            required = {name for name, kind in OPS[op].items() if kind in ("IN", "ARG")}
            missing = required - given - set(passed)
            assert not missing, f"{place} lacks {missing}"
    assert len(seen) > 30, "the rest are registered only"


def test_nothing_is_named_twice() -> None:
    for struct, fields in structs().items():
        names = re.findall(r"^  [A-Z_]+\([\w* :]+?, (\w+)", fields, re.MULTILINE)
        assert len(names) == len(set(names)), struct


def rows() -> dict[str, list[str]]:
    """The cells of the map's line for each op."""
    lines = [line.strip("|").split("|") for line in README.splitlines() if line.startswith("| `")]
    return {op: cells[1:] for cells in lines for op in re.findall(r"`(\w+)`", cells[0])}


@pytest.mark.parametrize("op", OPS)
def test_the_map_names_each_op_with_its_kernel_reference_and_test(op: str) -> None:
    kernel, _, reference, test = rows()[op]
    for name in re.findall(r"`(\S+?\.cuh?)`", kernel):
        assert (build.SOURCES / name).exists(), name
    references = "".join((ROOT / path).read_text() for path in REFERENCES)
    for name in re.findall(r"`(\w+)`", reference):
        assert re.search(rf"^(def|class) {name}\b", references, re.MULTILINE), name
    for name in re.findall(r"`(\S+\.py)`", test):
        where = ROOT if name.startswith("tests/") else ROOT / "tests" / "kernels"
        assert (where / name).exists(), name


REFERENCES = (
    *("kernels/reference.py", "kernels/reference_experts.py"),
    "tests/kernels/decoder/reference_decoder.py",
)


def test_the_map_names_each_source_and_module() -> None:
    for path in build.SOURCES.rglob("*.cu"):
        assert f"`{path.relative_to(build.SOURCES)}`" in README, path
    for path in (ROOT / "kernels").glob("*.py"):
        assert path.name.startswith("__") or f"`{path.name}`" in README, path
