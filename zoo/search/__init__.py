"""Search among images.

- ``index``: build an index of a folder of images; find the nearest images of queries
- ``building``: from images to an index, in memory or in files
- ``neighbours``: nearest neighbours by FAISS, sorted in float64
- ``compressed``: nearest neighbours in files, of more vectors than memory holds
- ``compressing``: write these files
- ``parts``: embed images part by part; go on after a kill
- ``folder``: write and read the folder of an index
- ``sheet``: draw queries and their hits as a contact sheet
"""
