"""Benchmarks: what this code costs and achieves, each figure compared with a reference."""
