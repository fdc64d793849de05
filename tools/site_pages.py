"""Hooks of mkdocs: documents in the root of the repository become pages of the site too.

Links between documents work in the repository and, rewritten here, on the site.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_STANDS_FOR = {**PAGES, "README.md": "index.md"}


def on_config(config: Any) -> Any:
    """Let mkdocstrings find the extension in the folder of this file."""
    sys.path.append(str(Path(__file__).parent))
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the documents of the root."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=moved(text, ROOT)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page in docs/ to pages of the site."""
    return markdown if page.file.generated_by else moved(markdown, DOCS)


def moved(text: str, folder: Path) -> str:
    """Return a document of a folder with its links rewritten for docs/.

    A target that is not a page of the site, such as a source file, is named without a link.
    """

    def lead(match: re.Match[str]) -> str:
        words, target, anchor = match[1], match[2], match[3] or ""
        inside = os.path.relpath(folder / target, ROOT)
        if inside in _STANDS_FOR:
            return f"[{words}]({_STANDS_FOR[inside]}{anchor})"
        if Path(inside).parts[0] != DOCS.name:
            return f"`{inside}`" if words in (inside, target) else f"{words} (`{inside}`)"
        return f"[{words}]({os.path.relpath(inside, DOCS.name)}{anchor})"

    return re.sub(r"\[([^\]\[]+)\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)", lead, text)
