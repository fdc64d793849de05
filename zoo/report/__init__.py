"""``zoo report``: run folders -> a static site that needs no network; and figures for papers."""
