"""The leaderboard: loading kept results, ranking methods, formatting tables."""
