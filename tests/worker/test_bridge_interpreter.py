"""Which Python runs the bridge child: the order of the source document, and a sentence where there is none."""

import os
import sys
from pathlib import Path

import pytest

from shared import settings as portal_settings
from shared.errors import StartFailed
from shared.settings import Settings
from worker.backends.bridge.interpreter import Interpreter, find_interpreter


class Machine:
    """A home, a PATH and an agent root, all of them empty."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "checkout"
        self.home = folder / "home"
        self.bin = folder / "bin"
        for each in (self.root, self.home, self.bin):
            each.mkdir()
        self.environ: dict[str, str] = {}

    def settings(self) -> Settings:
        return portal_settings.load({"HERMES_HOME": str(self.home / ".hermes"), **self.environ}, cwd=self.folder)

    def find(self) -> Interpreter:
        return find_interpreter(self.settings(), {"HOME": str(self.home), "PATH": str(self.bin)})

    def checkout(self, root: Path | None = None) -> Path:
        root = root or self.root
        root.mkdir(parents=True, exist_ok=True)
        (root / "run_agent.py").write_text("")
        return root

    def program(self, path: Path | str, text: str = "#!/bin/sh\n") -> str:
        path = self.folder / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return str(path)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_order_is_that_of_the_source_document(machine: Machine) -> None:
    """Each step is what the one before it is without."""
    root = machine.checkout()
    machine.environ["HERMES_AGENT_ROOT"] = str(root)
    found = []
    last = machine.program("bin/python")
    found.append(((last,), "python of the PATH"))
    last = machine.program("bin/python3")
    found.append(((last,), "python3 of the PATH"))
    uv = machine.program("bin/uv")
    (root / "pyproject.toml").write_text("")
    found.append(((uv, "run", "--project", str(root), "python"), "uv"))
    installed = machine.program("elsewhere/bin/python3.11")
    machine.program("bin/hermes", f"#!{installed}\nimport hermes\n")
    found.append(((installed,), "the installed hermes command"))
    dot_venv = machine.program("checkout/.venv/bin/python")
    found.append(((dot_venv,), "the venv of the agent root"))
    venv = machine.program("checkout/venv/bin/python")
    found.append(((venv,), "the venv of the agent root"))
    given = machine.program("given/python")
    machine.environ["HERMES_AGENT_BRIDGE_PYTHON"] = given
    found.append(((given,), "HERMES_AGENT_BRIDGE_PYTHON"))
    for command, found_by in reversed(found):
        assert machine.find() == Interpreter(command, root, found_by)
        if found_by.startswith("HERMES"):
            del machine.environ["HERMES_AGENT_BRIDGE_PYTHON"]
        elif found_by.startswith("the installed"):
            (machine.bin / "hermes").unlink()
        else:
            Path(command[0]).unlink()


@pytest.mark.parametrize("setting", ["HERMES_AGENT_BRIDGE_UV", "UV"])
def test_uv_may_be_named(machine: Machine, setting: str) -> None:
    root = machine.checkout()
    (root / "pyproject.toml").write_text("")
    machine.program("bin/uv")
    machine.environ |= {"HERMES_AGENT_ROOT": str(root), setting: machine.program("tools/uv-2")}
    assert machine.find().command[0] == machine.environ[setting]


@pytest.mark.parametrize("home", [".hermes", "profile"])
def test_the_checkout_of_the_installer_is_found(machine: Machine, home: str) -> None:
    root = machine.checkout(machine.home / ".hermes" / "hermes-agent")
    machine.environ["HERMES_HOME"] = str(machine.home / home)
    python = machine.program(root / "venv/bin/python")
    assert machine.find() == Interpreter((python,), root, "the venv of the agent root")


@pytest.mark.parametrize(
    "text",
    [
        "#!{python}\nimport sys\n",
        "#! {python} -E\n",
        "#!/usr/bin/env -S python3.11 -E\n",
        "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\nimport sys\n",
        '#!/usr/bin/env bash\nunset PYTHONPATH\nexec "{script}" "$@"\n',
        "#!/bin/bash\nexec {script} $@\n",
    ],
)
@pytest.mark.parametrize("place", ["bin/hermes", "home/.local/bin/hermes"])
def test_the_installed_command_tells_its_interpreter(machine: Machine, text: str, place: str) -> None:
    python = machine.program("venv-of-hermes/bin/python3.11")
    os.symlink(python, machine.bin / "python3.11")
    script = machine.program("venv-of-hermes/bin/hermes", f"#!{python}\n")
    machine.program(place, text.format(python=python, script=script))
    found = machine.find()
    assert found.found_by == "the installed hermes command"
    assert Path(found.command[0]).resolve() == Path(python)
    assert found.agent_root is None


def test_a_linked_command_of_a_checkout_brings_its_root(machine: Machine) -> None:
    root = machine.checkout(machine.folder / "opt" / "hermes-agent")
    python = machine.program(root / "venv/bin/python3")
    script = machine.program(root / "venv/bin/hermes", f"#!{python}\n")
    os.symlink(script, machine.bin / "hermes")
    assert machine.find() == Interpreter((python,), root, "the installed hermes command")


def test_a_command_that_calls_itself_is_not_followed_for_ever(machine: Machine) -> None:
    machine.program("bin/hermes", f'#!/bin/sh\nexec "{machine.bin / "hermes"}" "$@"\n')
    with pytest.raises(StartFailed, match="No Hermes"):
        machine.find()


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("HERMES_AGENT_BRIDGE_PYTHON", "/nowhere/python", "HERMES_AGENT_BRIDGE_PYTHON names /nowhere/python"),
        ("HERMES_AGENT_ROOT", "/nowhere", "HERMES_AGENT_ROOT is /nowhere"),
    ],
)
def test_a_setting_that_leads_nowhere_is_said(machine: Machine, setting: str, value: str, said: str) -> None:
    machine.environ[setting] = value
    with pytest.raises(StartFailed, match=said) as caught:
        machine.find()
    assert "Install hermes-agent" in caught.value.message


def test_no_hermes_at_all_says_how_to_get_one(machine: Machine) -> None:
    """A Python is there, but it cannot import Hermes."""
    os.symlink(sys.executable, machine.bin / "python3")
    with pytest.raises(StartFailed, match="No Hermes was found") as caught:
        machine.find()
    assert "HERMES_AGENT_ROOT" in caught.value.message
    assert "HERMES_AGENT_BRIDGE_PYTHON" in caught.value.message


def test_a_python_with_hermes_among_its_packages_is_taken(machine: Machine, hermes_python: Path) -> None:
    """The real hermes-agent, installed by pip."""
    machine.program("bin/python3", f'#!/bin/sh\nexec {hermes_python} "$@"\n')
    assert machine.find() == Interpreter((str(machine.bin / "python3"),), None, "python3 of the PATH")


def test_the_real_command_is_found(machine: Machine, hermes_python: Path) -> None:
    os.symlink(hermes_python.parent / "hermes", machine.bin / "hermes")
    found = machine.find()
    assert found.found_by == "the installed hermes command"
    assert Path(found.command[0]).parent == hermes_python.parent
