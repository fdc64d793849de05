"""From files on disk to batches of pixels.

- ``tree``, ``decoding``: which files of a folder are images; any image file -> RGB
- ``splits``, ``holdout``: the splits that a config names; classes held out for validation
- ``pipeline``: a data set and a sampler -> batches
- ``cache``: the resized images of a split in one memory-mapped file
- ``survey``, ``lookalikes``: which data sets are here, and what is wrong with them
- ``download``, ``unpack``: large files from the network; archives
"""
