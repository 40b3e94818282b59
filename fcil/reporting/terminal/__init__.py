"""Runs in the terminal: progress, reports and their tables."""
