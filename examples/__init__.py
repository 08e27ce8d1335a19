"""Example programs with real resharding in them; see README.md in this folder."""
