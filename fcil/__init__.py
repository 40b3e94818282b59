"""Federated class-incremental learning: GLFC and its baselines, exact and resumable.

`docs/python.md` shows every name.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fcil.api.compare import Compared, compare
    from fcil.api.holdings import Holdings, holdings
    from fcil.api.lists import list_methods, list_networks, list_presets
    from fcil.api.read import figures, load_run, report
    from fcil.api.run import Result, resume, run
    from fcil.core.errors import FcilError
    from fcil.experiment.model_file import Prediction, Predictor, load_model
    from fcil.methods import Method, register_method
    from fcil.models.registry import Network, register_network
    from fcil.reporting.run_facts import RunFacts

__version__ = "0.1.0"
__all__ = [
    "Compared",
    "FcilError",
    "Holdings",
    "Method",
    "Network",
    "Prediction",
    "Predictor",
    "Result",
    "RunFacts",
    "__version__",
    "compare",
    "figures",
    "holdings",
    "list_methods",
    "list_networks",
    "list_presets",
    "load_model",
    "load_run",
    "register_method",
    "register_network",
    "report",
    "resume",
    "run",
]
_HOMES = {
    "fcil.api.compare": ("Compared", "compare"),
    "fcil.api.holdings": ("Holdings", "holdings"),
    "fcil.api.lists": ("list_methods", "list_networks", "list_presets"),
    "fcil.api.read": ("figures", "load_run", "report"),
    "fcil.api.run": ("Result", "resume", "run"),
    "fcil.core.errors": ("FcilError",),
    "fcil.methods": ("Method", "register_method"),
    "fcil.models": ("Network", "register_network"),
    "fcil.reporting.run_facts": ("RunFacts",),
    "fcil.experiment.model_file": ("Prediction", "Predictor", "load_model"),
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, because torch takes seconds to load."""
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'fcil' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
