"""The processes of one run: started together, with equal shares of the work.

- ``ranks``: which process this is, its share, and what the processes exchange
- ``launch``: start them on this machine by torch's launcher, and return what the first returns
- ``worker``: what one of them does first and last
- ``remote``: progress that another process shows
"""
