"""What a release promises on paper: README's two commands, the pinned dependencies, no trace of one machine."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RUN = "python3 -m venv .venv && .venv/bin/pip install -e . && .venv/bin/portal up"
TEST = "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/pytest"
PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(\[[^]]*\])?==(?P<version>[^\s;]+)")


def pins(lines: list[str]) -> dict[str, str]:
    found = (PIN.match(line) for line in lines)
    return {re.sub(r"[-_.]+", "-", each["name"]).lower(): each["version"] for each in found if each}


@pytest.fixture(scope="module")
def lock() -> str:
    return (ROOT / "requirements.lock").read_text(encoding="utf-8")


def test_readme_has_the_two_commands_and_ci_runs_the_second() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert RUN in readme
    assert TEST in readme
    assert TEST in [line.strip() for line in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()]


def test_every_dependency_is_pinned_and_the_lock_has_the_same_versions(lock: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["ops"]]
    wanted = pins(asked)
    assert len(wanted) == len(asked)
    locked = pins(lock.splitlines())
    assert {name: locked.get(name) for name in wanted} == wanted


def test_every_file_of_the_lock_has_a_hash_and_no_address(lock: str) -> None:
    blocks = re.split(r"\n(?=[a-z0-9])", re.sub(r"(?m)^#.*\n", "", lock))
    assert len(blocks) > 40
    assert not [block for block in blocks if "--hash=sha256:" not in block]
    assert "://" not in lock


def test_no_tracked_file_names_a_registry_or_a_path_of_one_machine() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: an unpacked archive has no list of its files")
    end = "org"
    hosts = ("pypi" + f".{end}", "pythonhosted" + f".{end}", "registry.np" + f"mjs.{end}", "deb.deb" + f"ian.{end}")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    named = []
    for name in listed.decode().split("\0"):
        path = ROOT / name
        if path.is_file() and b"\0" not in (content := path.read_bytes()):
            named += [f"{name}: {host}" for host in hosts if host.encode() in content]
    assert not named
