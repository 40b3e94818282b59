"""The Python interface: the names of `import fcil`, one module per group."""
