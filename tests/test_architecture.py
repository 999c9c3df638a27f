"""The import arrows of CONVENTIONS.md, read from the source: who may know about whom."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("shared", "webapp", "worker")
PURE = ("shared.run_state", "shared.protocol", "shared.transcript", "shared.transcript_items", "shared.transcript_json")
DOES_IO = {
    "asyncio", "celery", "flask", "http", "httpx", "io", "os", "pathlib", "psycopg", "redis", "shutil", "socket",
    "sqlalchemy", "sqlite3", "subprocess", "tempfile", "threading", "urllib.request",
}  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """Modules below `of` must not import anything below one of `never`."""

    of: str
    never: tuple[str, ...]


RULES = [
    Rule("shared", ("webapp", "worker", "templates", "flask", "celery")),
    Rule("webapp", ("worker",)),
    Rule("worker", ("webapp", "flask", "flask_sock", "werkzeug", "jinja2", "wtforms")),
    Rule("shared.models", ("shared.store", "shared.relay", "shared.database")),
    Rule("shared.store", ("shared.relay",)),
    Rule("shared.relay", ("shared.store", "shared.models", "shared.database", "sqlalchemy")),
    Rule("shared.protocol", ("shared.relay", "shared.store", "shared.models", "shared.database", "shared.settings")),
    Rule("shared.run_state", ("shared", "webapp", "worker")),
    Rule("shared.clock", ("shared",)),
    Rule("worker.backends", ("worker.runs", "worker.tasks", "shared.relay")),
    Rule("worker.backends.base", ("shared.store", "shared.models", "shared.database")),
    Rule("worker.backends.gateway", ("shared.store", "shared.models", "shared.database")),
    Rule("worker.backends.bridge", ("shared.store", "shared.models", "shared.database")),
    Rule("worker.backends.launcher", ("shared", "worker", "webapp")),
    Rule("worker.backends.demo", ("shared.store", "shared.models", "shared.database")),
]
"""A backend knows neither the database nor the relay (only the registry reads profiles): it yields what it hears, and
`worker.runs` drives it."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            yield name, ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports_of(name: str, tree: ast.Module) -> set[str]:
    """Every module named by an import anywhere in the file, those inside functions and `if TYPE_CHECKING` too."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = name.split(".")[: -node.level]
                base = ".".join([*parent, base] if base else parent)
            found.add(base)
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def is_below(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def breaches(rule: Rule, name: str, tree: ast.Module) -> list[str]:
    if not is_below(name, rule.of):
        return []
    return [
        f"{name} imports {module}"
        for module in sorted(imports_of(name, tree))
        if any(is_below(module, never) for never in rule.never) and not is_below(module, name)
    ]


@pytest.fixture(scope="module")
def all_modules() -> list[tuple[str, ast.Module]]:
    return list(modules())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.of)
def test_the_import_arrows_point_one_way(rule: Rule, all_modules: list[tuple[str, ast.Module]]) -> None:
    found = [breach for name, tree in all_modules for breach in breaches(rule, name, tree)]
    assert not found, "\n".join(found)


def test_the_bridge_child_knows_nothing_of_the_portal(all_modules: list[tuple[str, ast.Module]]) -> None:
    """It runs in Hermes' own interpreter, where our packages are not."""
    child = "worker.backends.bridge.process"
    found = [
        f"{name} imports {module}"
        for name, tree in all_modules
        if is_below(name, child)
        for module in sorted(imports_of(name, tree))
        if any(is_below(module, package) for package in PACKAGES) and not is_below(module, child)
    ]
    assert not found, "\n".join(found)


def test_states_protocol_and_transcript_do_no_input_or_output(all_modules: list[tuple[str, ast.Module]]) -> None:
    pure = [(name, tree) for name, tree in all_modules if any(is_below(name, each) for each in PURE)]
    assert len(pure) >= 4
    found = [
        f"{name} imports {module}"
        for name, tree in pure
        for module in sorted(imports_of(name, tree))
        if any(is_below(module, each) for each in DOES_IO)
    ]
    found += [f"{name} calls open()" for name, tree in pure if "open" in called_names(tree)]
    assert not found, "\n".join(found)


def test_the_web_side_defines_no_celery_task(all_modules: list[tuple[str, ast.Module]]) -> None:
    found = [
        f"{name}: {decorator}"
        for name, tree in all_modules
        if is_below(name, "webapp")
        for decorator in decorators(tree)
        if decorator.rsplit(".", 1)[-1] in {"task", "shared_task"}
    ]
    assert not found, "\n".join(found)


def test_there_is_no_module_for_everything(all_modules: list[tuple[str, ast.Module]]) -> None:
    names = {name.rsplit(".", 1)[-1] for name, _ in all_modules}
    assert not names & {"utils", "util", "helpers", "common", "misc"}


@pytest.mark.parametrize(
    ("name", "source", "broken"),
    [
        ("shared.ids", "import webapp.app", "shared"),
        ("webapp.actions.runs", "def f():\n    from worker.tasks import run_turn", "webapp"),
        ("worker.tasks", "from flask import Flask", "worker"),
        ("worker.runs.claim", "from webapp import auth", "worker"),
        ("shared.models.run", "from shared.store import runs", "shared.models"),
        ("shared.relay.keys", "from ..store import runs", "shared.relay"),
        ("shared.run_state", "from shared import clock", "shared.run_state"),
    ],
)
def test_a_breach_is_found(name: str, source: str, broken: str) -> None:
    tree = ast.parse(source)
    assert [rule.of for rule in RULES if breaches(rule, name, tree)] == [broken]


def called_names(tree: ast.Module) -> set[str]:
    return {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}


def decorators(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                yield ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
