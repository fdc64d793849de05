"""``zoo report``: run folders -> a static site that needs no network; see :mod:`zoo.report.site`."""
