"""Any text is shown as it is, in ASCII that LaTeX understands."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from boards import result, results_of

from zoo import leaderboard
from zoo.tables.formats.escape import escape


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("a_b & 50%", r"a\_b \& 50\%"),
        ("<script>", "$<$script$>$"),
        ("\\input{x}", r"\textbackslash{}input\{x\}"),
        ("#1 $x$ ~^", r"\#1 \$x\$ \textasciitilde{}\textasciicircum{}"),
        ("[red] *", "{[}red{]} {*}"),
        ("-- --- , ,, '' ''' a-b", r"-{}- -{}-{}- , ,{}, '{}' '{}'{}' a-b"),
        ("?` `", r"?\textasciigrave{} \textasciigrave{}"),
        ("87.9 ± 0.1 – × ²", r"87.9 $\pm$ 0.1 -- $\times$ \textsuperscript{2}"),
        ("é Ü ñ ç ï Å š", r"\'{e} \"{U} \~{n} \c{c} \"{\i} \r{A} \v{s}"),
        ("\u03b1 Λ ω \u03bf", r"$\alpha$ $\Lambda$ $\omega$ {[}U+03BF{]}"),
        ("中 🐦", "{[}U+4E2D{]} {[}U+1F426{]}"),
        ("a\nb", "a b"),
        ("", ""),
    ],
)
def test_it_is_shown_as_it_is(text, latex):
    assert escape(text) == latex
    assert escape(text).isascii()


HOSTILE = [
    r"<script>alert(1)</script> a_b & 50% \end{table} \immediate\write18{x} $ # ^ ~ { } | \" ` '",
    "[red] * - -- '' ?` é ß ł ñ ç ẽ ệ δ ω Γ Ω 中 🐦 ∞ ≤ ± × – — … ² µ \x1b[2J \u202e \x00",
]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.parametrize("shape", ["runs", "table2", "table3"])
def test_it_compiles(shape, tmp_path):
    """Without a warning: what is too wide for the page is one."""
    runs = [r for name in ("ice_sop", "rll_sop", "ice_lmh_cars") for r in results_of(name)]
    runs += [*results_of("ice_sop", seed=1), *results_of("ablation/scale_sop")]
    if shape == "runs":
        runs += [result(name, {1: 0.5}, digest=name) | {"loss": HOSTILE[0]} for name in HOSTILE]
        runs += [result("x", {1: 0.5}, dataset=HOSTILE[1]) | {"backbone": HOSTILE[0]}]
        runs += [result("[y", {1: 0.5}, dataset=HOSTILE[1])]
        runs += [r | {"settings": {HOSTILE[0]: 1, HOSTILE[1]: HOSTILE[1]}} for r in runs[-2:-1]]
    tables = leaderboard.tables(runs, shape)
    text = leaderboard.render(tables, "latex", standalone=True)
    assert text.isascii()
    (tmp_path / "table.tex").write_text(text)
    compiler = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape"]
    done = subprocess.run(
        [*compiler, "table.tex"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "table.pdf").is_file()
    if shape != "runs":  # where a name has no end, neither has the line
        assert "Overfull" not in done.stdout


def test_a_part_of_a_document_says_what_it_needs():
    text = leaderboard.render(leaderboard.tables([result("a_b", {1: 0.5})]), "latex")
    assert text.startswith("% In the preamble: \\usepackage{booktabs}\n\n\\begin{table}\n")
    assert text.endswith("\\end{table}\n")
    assert "\\documentclass" not in text


def test_labels_are_different():
    runs = [result("a", {1: 0.5}, dataset=name) for name in ("d_1", "d-1", "d<1>")]
    text = leaderboard.render(leaderboard.tables(runs), "latex")
    labels = [line.strip() for line in text.splitlines() if "label" in line]
    assert labels == [f"\\label{{tab:runs-d-1{end}}}" for end in ("", "-2", "-3")]
