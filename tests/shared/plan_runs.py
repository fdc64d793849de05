"""Small runs by `zoo run`, as a command of its own, for tests of plans."""

from __future__ import annotations

import os
import subprocess
import sys
import time

LONG = 120  # seconds that nothing should take, however busy the machine is


def settings(photographs, output, train):
    """Return the settings of a run of a second or two."""
    return [
        f"dataset={{name: image_folder, root: {photographs}}}",
        "images={crop: 16, mirror: true}",
        "model={backbone: {name: convnet, width: 2}, embedding_size: 4}",
        "sampler={name: m_per_class, classes: 4, per_class: 2}",
        train,
        "device=cpu",
        f"output={output}",
    ]


def command(*arguments, **environment):
    """Start `zoo run`, for real."""
    return subprocess.Popen(
        [sys.executable, "-m", "zoo", "run", "ice_glyphs", *arguments],
        env={**os.environ, "COLUMNS": "200", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(what, seconds=LONG):
    """Wait until something holds."""
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)
