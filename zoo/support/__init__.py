"""What every other package stands on; none of it knows of losses or runs.

- ``files``: files read only where they are files, and written whole or not at all
- ``text``, ``values``: text that is safe to print; values and types in the words of a config
- ``yaml``: YAML 1.2 in which every value knows its file and line
- ``checked``: a decorator that compares arguments with annotations
- ``near``: the known name that a wrong one probably meant
- ``templates``: pages from Jinja templates, which escape every text
- ``signals``: Ctrl-C and SIGTERM
- ``environment``: versions, hardware, memory, the state of the user's repository
- ``precision``, ``randomness``: float32 that is float32; the state of random number generators
"""
