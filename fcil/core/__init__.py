"""What every room needs: errors, whole-or-absent files, settings tables, the registry, messages and seeds."""
