"""Many runs as one job: planned, carried out on an engine, chosen from.

- ``planning``: list the runs of configs; ``running``: carry them out
- ``contest``: which settings of a sweep are measured on the test classes
- ``forecast``: the time and the disk space that they will take
- ``engines``: where runs are carried out: here, by SLURM, by Ray
- ``tune``: search of settings
- ``scheduler``, ``jobs``: which run is started when; a run and its progress
- ``process``: the process of one run
- ``live``: the live table
"""
