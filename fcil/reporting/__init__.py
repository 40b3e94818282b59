"""Views of runs: the terminal, the page, the live list, comparisons, the leaderboard, figures and loggers."""
