"""The catalogue of skills: both folders, names that are safe, and files that are none (S32, S34)."""

import os
from pathlib import Path

import pytest

from shared import skills


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


def put(root: Path, folder: str, text: str = "---\nname: N\ndescription: D\n---\nBody") -> Path:
    path = root / "skills" / folder / "SKILL.md"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return path


def text_of(home: Path, data_dir: Path, folder: str) -> str:
    found = skills.read(home, data_dir, folder)
    assert found is not None
    return found.text


def one(home: Path, matter: str) -> skills.Skill:
    put(home, "a", f"---\n{matter}\n---\nBody")
    (found,) = skills.listed(home, home / "nowhere")
    return found


def test_the_profiles_own_and_the_portals_stand_side_by_side(home: Path, data_dir: Path) -> None:
    put(home, "audit", "---\nname: Audit\ndescription: of the profile\n---\nOwn")
    put(home, "finance/close", "---\nname: Close\n---\nMonthly")
    put(data_dir, "audit", "---\nname: Audit\ndescription: of the portal\n---\nShared")
    put(data_dir, "tidy", "---\nname: Tidy\n---\nShared")
    found = [(s.folder_name, s.description, s.source) for s in skills.listed(home, data_dir)]
    assert found == [
        ("audit", "of the profile", "profile"), ("close", "", "profile"), ("tidy", "", "portal"),
    ]  # fmt: skip
    assert text_of(home, data_dir, "audit").endswith("Own")
    assert text_of(home, data_dir, "tidy").endswith("Shared")
    assert skills.any_listed(home / "nowhere", data_dir)


def test_one_profile_does_not_see_the_skills_of_another(home: Path, data_dir: Path) -> None:
    put(home, "secret-plan")
    assert skills.listed(home.parent / "other", data_dir) == []
    assert skills.read(home.parent / "other", data_dir, "secret-plan") is None
    assert not skills.any_listed(home.parent / "other", data_dir)


@pytest.mark.parametrize("folder", ["..", "a..b", ".hidden", "a b", "-x", "x\u202ey", "名", "a" * 65, "<img>"])
def test_a_folder_whose_name_is_not_safe_is_not_there(home: Path, data_dir: Path, folder: str) -> None:
    if folder != "..":
        put(home, folder)
    assert skills.listed(home, data_dir) == []
    assert skills.read(home, data_dir, folder) is None


def test_no_link_is_followed(home: Path, data_dir: Path, tmp_path: Path) -> None:
    secret = put(tmp_path / "elsewhere", "secret")
    (home / "skills" / "file").mkdir(parents=True)
    (home / "skills" / "file" / "SKILL.md").symlink_to(secret)
    (home / "skills" / "folder").symlink_to(secret.parent)
    assert skills.listed(home, data_dir) == []
    assert skills.read(home, data_dir, "file") is None
    assert skills.read(home, data_dir, "folder") is None


def test_what_is_no_file_is_left_alone_and_stops_nobody(home: Path, data_dir: Path) -> None:
    for folder in ("pipe", "socket"):
        (home / "skills" / folder).mkdir(parents=True)
    os.mkfifo(home / "skills" / "pipe" / "SKILL.md")
    (home / "skills" / "dir" / "SKILL.md").mkdir(parents=True)
    assert skills.listed(home, data_dir) == []
    assert skills.read(home, data_dir, "pipe") is None


def test_a_skill_that_is_too_long_is_listed_and_not_used(home: Path, data_dir: Path) -> None:
    put(home, "long", "---\nname: Long\n---\n" + "x" * skills.MAX_BYTES)
    assert [skill.name for skill in skills.listed(home, data_dir)] == ["Long"]
    assert skills.read(home, data_dir, "long") is None


@pytest.mark.parametrize(
    ("matter", "description"),
    [
        ("description: Plain words", "Plain words"),
        ('description: "Quoted: words"', "Quoted: words"),
        ("description: 'Quoted'", "Quoted"),
        ("description: >\n  Folded over\n  two lines\nname: N", "Folded over two lines"),
        ("description: |-\n  Kept\n  as one\n", "Kept as one"),
        ("description: It goes on\n  below\nversion: 1", "It goes on below"),
        ("description:\n  Below only", "Below only"),
        ("metadata:\n  description: not ours\ndescription: ours", "ours"),
        ("description: it's", "it's"),
        ("description: &a [*a, *a]", "&a [*a, *a]"),
        ("description: <script>alert(1)</script>", "<script>alert(1)</script>"),
        ("description: a\0b", "a\ufffdb"),
        ("version: 1", ""),
    ],
)
def test_the_description_is_one_line_of_plain_words(home: Path, matter: str, description: str) -> None:
    assert one(home, matter).description == description


def test_a_file_without_a_head_goes_by_its_folder(home: Path, data_dir: Path) -> None:
    put(home, "bare", "# Just text\nname: no")
    put(home, "empty", "")
    put(home, "broken").write_bytes(b"\xff\xfe---\nname: \xff")
    assert [(s.name, s.description) for s in skills.listed(home, data_dir)] == [
        ("bare", ""), ("broken", ""), ("empty", ""),
    ]  # fmt: skip


def test_names_and_descriptions_have_an_end(home: Path) -> None:
    found = one(home, f"name: {'n' * 5_000}\ndescription: {'d' * 5_000}")
    assert (len(found.name), len(found.description)) == (skills.MAX_NAME, skills.MAX_DESCRIPTION)
