"""Benchmarks: what this code costs and reaches, each figure beside a reference."""
