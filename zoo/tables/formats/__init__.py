"""A table in each format; ``narrow`` fits one to a terminal, ``escape`` is LaTeX's."""
