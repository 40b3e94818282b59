"""Scenarios: which client holds which samples, and when."""
