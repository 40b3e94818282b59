"""Federated class-incremental learning: GLFC and what it is compared with, exact, resumable, in one library."""

__version__ = "0.1.0"
