"""Search among images.

- ``index``: build an index of a folder of images; find the nearest images of queries
- ``neighbours``: nearest neighbours by FAISS, sorted in float64
- ``folder``: write and read the folder of an index
- ``sheet``: draw queries and their hits as a contact sheet
"""
