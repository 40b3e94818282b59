"""`python -m benchmarks [NAME]`: measure speed against a reference, one line of JSON per figure.

The exit code is 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.measure import benchmarks, check_name, machine, run_benchmark, summaries
from fcil.core.errors import ConfigError, system_words


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks that are asked for and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a name from --list; all of them by default")
    parser.add_argument("--out", type=Path, metavar="FILE", help="append the lines to this file as well")
    parser.add_argument("--list", action="store_true", help="only list the benchmarks")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.list:
            for name, summary in summaries().items():
                print(f"{name:<12} {summary}")
            return 0
        return _measure([check_name(chosen.name)] if chosen.name else list(benchmarks()), chosen.out)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _measure(names: list[str], out: Path | None) -> int:
    if out is not None:
        _check_appendable(out)
    print(f"measured on {machine()}", file=sys.stderr)
    missed = []
    for name in names:
        for measurement in run_benchmark(name):
            print(measurement.line(), flush=True)
            if out is not None:
                with out.open("a", encoding="utf-8") as file:
                    file.write(measurement.line() + "\n")
            missed += [measurement.name] if measurement.holds is False else []
    if missed:
        print(f"below their bounds: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def _check_appendable(out: Path) -> None:
    """Refuse a file that cannot be written before anything is measured; leave none where there was none."""
    new = not out.exists()
    try:
        out.open("a").close()
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written ({system_words(error)}); name a file") from error
    if new:
        out.unlink()


if __name__ == "__main__":
    sys.exit(main())
