"""Where the runs of a plan are carried out: on this machine, or by a cluster.

- ``base``: what an engine has to do; an engine of your own is a subclass of ``Engine``
- ``local``, ``slurm``, ``ray``: the engines, each with its file
- ``chosen``: find an engine by name; ``resources``: the user's file
- ``child``, ``slots``, ``attendant``: the process of a run, its devices, and who looks after it
"""
