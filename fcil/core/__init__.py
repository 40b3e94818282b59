"""The foundation of all rooms: errors, whole-or-absent files, settings tables, the registry, messages and seeds."""
