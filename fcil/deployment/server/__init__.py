"""The server of a real federation: membership, rounds, evaluation and the run in its directory."""
