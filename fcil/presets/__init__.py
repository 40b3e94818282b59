"""Configurations that come with the package, one TOML each."""
