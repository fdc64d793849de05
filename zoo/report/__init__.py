"""``zoo report``: run folders -> a static site that works offline; ``zoo plot``: figures.

- ``site``, ``render``, ``output``: the pages, their templates, the folder that they are written to
- ``collect``, ``facts``: the data of a run for a report
- ``tables``, ``charts``, ``sweeps``: its tables and interactive figures
- ``look``, ``gallery``, ``neighbours``, ``tsne``, ``thumbnails``: retrieved images and maps
- ``figures``: figures for papers
- ``extra``: what the extra ``report`` installs
"""
