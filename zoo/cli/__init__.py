"""The command: one file for each group of subcommands.

``main`` puts them together and turns errors into one line and an exit status.
"""
