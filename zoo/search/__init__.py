"""Search among images.

- ``index``: a folder of images -> an index; queries -> their nearest images
- ``neighbours``: FAISS, its answers put in order in float64
- ``folder``: the folder of an index, written and read
- ``sheet``: queries and what was found, as a picture
"""
