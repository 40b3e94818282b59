"""Run two methods and plot them, in ten lines: python examples/quick.py [PICTURE.png]."""

import sys

import matplotlib.pyplot as plt

import fcil

SMALL = ["data.samples_per_class=60", "scenario.rounds_per_task=3", "model.name=cnn"]
for method in ("finetune", "icarl"):
    result = fcil.run("digits", method=method, settings=SMALL, out=f"runs/quick-{method}", resume=True)
    plt.plot(result.summary["classes_seen"], result.summary["accuracy"], "o-", label=method)
plt.xlabel("classes seen")
plt.ylabel("accuracy (%)")
plt.legend()
plt.savefig(sys.argv[1] if len(sys.argv) > 1 else "quick.png")
