"""Results of runs become tables.

- ``leaderboard``: the entrance: load, make tables, write them in any format
- ``boards``, ``listed``: results -> experiments -> boards -> tables
- ``shapes``, ``shaped``: the layout of a published table; results in that layout
- ``table``: a table as data and as cells
- ``conditions``, ``differences``: which experiments are comparable; in which settings they differ
- ``select``: filters and order
- ``notebook``: tables as text, as HTML in a notebook, as a data frame
- ``formats``: a file for each format
"""
