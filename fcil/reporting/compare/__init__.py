"""Comparisons: many runs of one experiment, and tables over them."""
