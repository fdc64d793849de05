"""What every other package builds on; nothing here depends on losses or runs.

- ``files``: reading regular files only; writing files whole or not at all
- ``text``, ``values``: text that is safe to print; values and types in the words of a config
- ``yaml``: YAML 1.2 in which every value knows its file and line
- ``checked``: a decorator that compares arguments with annotations
- ``near``: the known names closest to a misspelt one
- ``optional``: packages that an extra installs
- ``templates``: pages from Jinja templates, which escape every text
- ``signals``: Ctrl-C and SIGTERM
- ``environment``: versions, hardware, memory, the state of the user's repository
- ``precision``, ``randomness``: full float32; the state of random number generators
"""
