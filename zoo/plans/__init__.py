"""Many runs as one job: planned, scheduled on devices, chosen from.

- ``planning``: list the runs of configs, and carry them out
- ``contest``: which settings of a sweep are measured on the test classes
- ``forecast``: the time and the disk space that they will take
- ``scheduler``, ``process``: processes on devices; the process of one run
- ``live``: the live table
"""
