"""Runs in a browser while they train: watched folders, their pages, and the server."""
