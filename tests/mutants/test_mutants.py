from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from mutants.mutation import ROOT, Mutation, read_mutations
from mutants.run import judge, main

MUTATIONS = read_mutations()


def test_every_mutation_has_a_name_of_its_own_and_there_are_enough() -> None:
    assert max(Counter(mutation.name for mutation in MUTATIONS).values()) == 1
    assert len(MUTATIONS) >= 100


def test_each_mutation_changes_one_place_and_names_tests_that_exist() -> None:
    for mutation in MUTATIONS:
        text = (ROOT / mutation.file).read_text("utf-8")
        assert text.count(mutation.old) == 1, mutation.name
        assert mutation.new != mutation.old, mutation.name
        assert mutation.tests, mutation.name
        for test in mutation.tests:
            path, _, name = test.partition("::")
            assert f"def {name or 'test_'}" in (ROOT / path).read_text("utf-8"), (mutation.name, test)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a project of one function, with a test that sees what it is and one that sees nothing."""
    (tmp_path / "fcil").mkdir()
    (tmp_path / "fcil" / "__init__.py").write_text("def double(value):\n    return 2 * value\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_double.py").write_text(
        "from fcil import double\n\n\n"
        "def test_sees():\n    assert double(3) == 6\n\n\n"
        "def test_sees_nothing():\n    assert double(0) == 0\n\n\n"
        "def test_is_wrong():\n    assert double(3) == 7\n"
    )
    (tmp_path / "pyproject.toml").write_text("")
    return tmp_path


TRIPLED = Mutation(
    "tripled", "It triples.", "fcil/__init__.py", "2 * value", "3 * value", ("tests/test_double.py::test_sees",)
)


def test_a_mutation_that_no_test_notices_is_a_survivor(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (project / "fcil" / "__init__.py").read_text()
    ignored = replace(TRIPLED, name="ignored", tests=("tests/test_double.py::test_sees_nothing",))
    broken = replace(TRIPLED, name="broken", new="2 * (")
    assert not judge([TRIPLED, ignored, broken], project)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "caught    tripled  by tests/test_double.py::test_sees"
    assert lines[1] == "SURVIVED  ignored  (It triples.)"
    assert lines[2] == "NOT RUN   broken  (its tests could not be run)"
    assert lines[-1] == "1 of 3 caught"
    assert (project / "fcil" / "__init__.py").read_text() == before


def test_a_test_that_fails_without_the_mutation_proves_nothing(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not judge([replace(TRIPLED, tests=("tests/test_double.py::test_is_wrong",))], project)
    out = capsys.readouterr().out
    assert out.startswith("FAILS WITHOUT A MUTATION  tests/test_double.py::test_is_wrong\n")
    assert "caught" not in out


def test_the_command_lists_what_it_has_and_refuses_what_it_has_not(capsys: pytest.CaptureFixture[str]) -> None:
    name = MUTATIONS[0].name
    assert main(["--list", "--only", name]) == 0
    assert capsys.readouterr().out.split() == [name, *MUTATIONS[0].breaks.split()]
    with pytest.raises(SystemExit):
        main(["--only", "nonsense"])
    assert "--only: there is no mutation nonsense" in capsys.readouterr().err
