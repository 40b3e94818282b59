"""Damaged input of every kind, until all cases are run: `python -m fuzz.run`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from fuzz import configs, datasets, directories, messages, models
from fuzz.case import Damage, FindingError, Kind, judge
from fuzz.loop import place_for_cases, play, scratch

KINDS = {kind.name: kind for module in (configs, messages, directories, models, datasets) for kind in module.KINDS}


def shares(kinds: Sequence[Kind], cases: int) -> dict[Kind, int]:
    """Return how many of the cases each kind gets: its share, and one at least."""
    total = sum(kind.share for kind in kinds)
    counts = {kind: max(1, cases * kind.share // total) for kind in kinds}
    counts[kinds[0]] += max(0, cases - sum(counts.values()))
    return counts


def fuzz(kinds: Sequence[Kind], cases: int, seed: int, out: Path) -> int:
    """Play the cases, print a line per kind, keep findings for a replay, and return how many there are."""
    findings = 0
    for kind, count in shares(kinds, cases).items():
        outcomes: Counter[str] = Counter()
        for result in play(kind, seed, range(count)):
            outcomes[result.outcome or "found"] += 1
            if result.outcome is None:
                keep(kind, seed, result.number, result.found, out)
        findings += outcomes["found"]
        say(f"{kind.name:12} {count:6} cases: {outcomes['refused']} refused, {outcomes['read']} read, "
            f"{outcomes['found']} findings")  # fmt: skip
    say(f"{findings} findings in {sum(shares(kinds, cases).values())} cases with seed {seed}")
    return findings


def keep(kind: Kind, seed: int, number: int, found: str, out: Path) -> None:
    """Write a finding down, and say how to repeat it."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{kind.name}-{seed}-{number}.json"
    path.write_text(kind.damage(seed, number).dump(kind.name))
    last = found.strip().splitlines()[-1] if found.strip() else ""
    say(f"FOUND  {last[:300]}\n       play it again with --replay {path}")


def replay(path: Path) -> int:
    """Play one finding in this process, without a limit of memory, and say what comes of it."""
    name, damage = Damage.load(path.read_text())
    with place_for_cases() as place, scratch(place) as folder:
        try:
            say(judge(KINDS[name], damage, folder))
        except FindingError as finding:
            say(str(finding))
            return 1
    return 0


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.run", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="how many in all, over the kinds")
    parser.add_argument("--seed", type=int, default=0, help="of all draws")
    parser.add_argument("--only", action="append", choices=KINDS, metavar="KIND", help=f"one of {', '.join(KINDS)}")
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz"), help="folder of the findings")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="play one finding again")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if chosen.replay is not None:
        return replay(chosen.replay)
    kinds = [KINDS[name] for name in chosen.only or KINDS]
    return 1 if fuzz(kinds, chosen.cases, chosen.seed, chosen.out) else 0


if __name__ == "__main__":
    sys.exit(main())
