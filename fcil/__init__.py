"""Federated class-incremental learning: GLFC and what it is compared with, exact, resumable, in one library."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fcil.api import Result, run
    from fcil.results.model import load_model

__version__ = "0.1.0"
__all__ = ["Result", "__version__", "load_model", "run"]


def __getattr__(name: str) -> Any:
    """Import what a program asks for when it asks for it: torch takes seconds."""
    if name in ("Result", "run"):
        from fcil import api  # noqa: PLC0415

        return getattr(api, name)
    if name == "load_model":
        from fcil.results.model import load_model  # noqa: PLC0415

        return load_model
    raise AttributeError(f"module 'fcil' has no attribute {name!r}")
