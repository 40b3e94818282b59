"""Runs in a browser while they are played: the folders that are watched, their pages, and the server of both."""
