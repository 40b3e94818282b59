"""Apply one mutation at a time to a copy of the project and see that its tests fail: `python -m mutants.run`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from mutants.mutation import ROOT, Mutation, read_mutations

COPIED = ("fcil", "tests", "docs", "pyproject.toml")
PASSED, FAILED = 0, 1  # exit codes of pytest; any other one means that tests could not be run
LONGEST = 600  # seconds for the tests of one mutation
LONGEST_BASELINE = 7200  # seconds for all tests, without any


@dataclass(frozen=True)
class Verdict:
    """The result of a run of tests: its exit code (None: it was stopped), and the tests that failed."""

    code: int | None
    failed: tuple[str, ...]
    output: str


@contextmanager
def copied(root: Path) -> Iterator[Path]:
    """Give a copy of the project that is removed afterwards; the working tree is never edited."""
    with tempfile.TemporaryDirectory(prefix="fcil-mutant-") as folder:
        for name in filter(lambda name: (root / name).exists(), COPIED):
            source, target = root / name, Path(folder) / name
            if source.is_dir():
                shutil.copytree(source, target)
            else:
                shutil.copy2(source, target)
        yield Path(folder)


class Nursery:
    """A process that runs tests in forks of its own; see `mutants.nursery`."""

    def __init__(self) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "tests"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # no test needs one, and they take longer to load than tests to run
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "mutants.nursery"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def run(self, root: Path, tests: Iterable[str], *options: str, longest: float = LONGEST) -> Verdict:
        """Run tests on the package that lies at `root`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        arguments = ["-q", "--tb=line", "-rfE", "-p", "no:cacheprovider", *options, *tests]
        with tempfile.NamedTemporaryFile("r", encoding="utf-8", errors="replace") as output:
            asked = {"root": str(root), "arguments": arguments, "output": output.name, "longest": longest}
            self.process.stdin.write(json.dumps(asked) + "\n")
            self.process.stdin.flush()
            code = json.loads(self.process.stdout.readline())
            text = output.read()
        if code is None:
            return Verdict(None, (), f"no end within {longest:g} seconds")
        lines = [line.split() for line in text.splitlines()]
        failed = tuple(words[1] for words in lines if len(words) > 1 and words[0] in ("FAILED", "ERROR"))
        return Verdict(code, failed, text)

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def try_mutation(mutation: Mutation, root: Path, nurseries: SimpleQueue[Nursery]) -> Verdict:
    """Run a mutation's tests with the mutation in place, up to the first failure."""
    nursery = nurseries.get()
    try:
        with copied(root) as copy:
            mutation.apply(copy)
            return nursery.run(copy, mutation.tests, "-x")
    finally:
        nurseries.put(nursery)


def judge(mutations: Sequence[Mutation], root: Path = ROOT, workers: int = 1) -> bool:
    """Print one line per mutation, and return whether the tests caught all of them.

    First all their tests run on the code as it is: what fails there would prove nothing.
    """
    tests = list(dict.fromkeys(test for mutation in mutations for test in mutation.tests))
    nurseries: SimpleQueue[Nursery] = SimpleQueue()
    with ExitStack() as stack:
        for _ in range(workers):
            nurseries.put(nursery := Nursery())
            stack.callback(nursery.close)
        with copied(root) as copy:
            baseline = nursery.run(copy, tests, longest=LONGEST_BASELINE)
        if baseline.code != PASSED:
            for test in baseline.failed:
                say(f"FAILS WITHOUT A MUTATION  {test}")
            say(f"the tests must pass on the code as it is:\n{baseline.output}")
            return False
        missed = []
        pool = stack.enter_context(ThreadPoolExecutor(workers))
        verdicts = pool.map(partial(try_mutation, root=root, nurseries=nurseries), mutations)
        for mutation, verdict in zip(mutations, verdicts, strict=True):
            say(describe(mutation, verdict))
            if verdict.code != FAILED:
                missed.append(mutation.name)
    say(f"{len(mutations) - len(missed)} of {len(mutations)} caught")
    return not missed


def describe(mutation: Mutation, verdict: Verdict) -> str:
    """Return the line about one mutation."""
    if verdict.code == FAILED:
        return f"caught    {mutation.name}  by {verdict.failed[0]}"
    if verdict.code == PASSED:
        return f"SURVIVED  {mutation.name}  ({mutation.breaks})"
    return f"NOT RUN   {mutation.name}  (its tests could not be run)\n{verdict.output}"


def say(line: str) -> None:
    """Print a line at once, whatever the output goes to."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for, and return its exit code."""
    parser = argparse.ArgumentParser(prog="mutants", description="See that the tests catch each named mutation.")
    parser.add_argument("--only", action="append", metavar="NAME", help="this mutation alone; may be repeated")
    parser.add_argument("--list", action="store_true", help="list the mutations and what each one breaks")
    parser.add_argument("--workers", type=int, default=1, help="mutations tried at a time")
    chosen = parser.parse_args(arguments)
    mutations = {mutation.name: mutation for mutation in read_mutations()}
    strange = [name for name in chosen.only or () if name not in mutations]
    if strange:
        parser.error(f"--only: there is no mutation {strange[0]}; --list names them all")
    selected = [mutations[name] for name in chosen.only or mutations]
    if chosen.list:
        for mutation in selected:
            say(f"{mutation.name:40}  {mutation.breaks}")
        return 0
    return 0 if judge(selected, workers=chosen.workers) else 1


if __name__ == "__main__":
    sys.exit(main())
