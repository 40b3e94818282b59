"""Attacks: the behaviour of a simulation's hostile clients, a file for each."""
