"""The command: a file for each subcommand.

- ``main``: puts them together; turns errors into one line and an exit status
- ``many``: experiments, one or many
- ``listing``: components: what there is, and all about one
- ``check``, ``config``, ``data``: checks, and what experiments need
- ``leaderboard``, ``compare``, ``measure``, ``report``: results
- ``embed``, ``search``, ``export``: a trained network
- ``evaluate``: embeddings of another program
- ``options``, ``messages``: what several of them share
- ``record``: the outcome of the checks at release, which ``zoo list losses`` shows
"""
