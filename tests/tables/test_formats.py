"""One table in six formats: exactly what each has, and that all have the same numbers."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser

import pytest
from boards import result, results_of, write_runs

from zoo import leaderboard

PAPER = {"table": "Table 3", "row": "ICE", "dataset": "glyphs", "recall": {"1": 80.0, "2": None}}
RUNS = [
    result("a_b", {1: 0.80, 2: 0.9}, seed=0, paper=PAPER),
    result("a_b", {1: 0.84, 2: 0.9}, seed=1, paper=PAPER),
    result("c", {1: 0.7}) | {"loss": None, "recall_of_features": {"1": 0.71}},
    result("d", {1: 0.9, 2: 0.95}, digest="bb") | {"embedding_size": 8},
]
NOTES = [
    "not comparable with the others: model.embedding_size=8 instead of 64",
    "not measured as the paper's values: model.backbone=convnet instead of bn_inception",
]


def render(kind, runs=RUNS, **more):
    return leaderboard.render(leaderboard.tables(runs, **more), kind)


TEXT = """\
Recall@K in percent, glyphs; convnet
config             loss  size  seeds           R@1           R@2  minutes
d¹                 ice      8      1         90.00         95.00      1.5
a_b²               ice     64      2  82.00 ± 2.83  90.00 ± 0.00      1.5
  paper                               80.0 (+2.00)             –
c                  –       64      1         70.00             –      1.5
  pooled features                            71.00             –
±: standard deviation over the seeds
Bold: the best of the rows that are comparable
¹ not comparable with the others: model.embedding_size=8 instead of 64
² not measured as the paper's values: model.backbone=convnet instead of bn_inception
"""

MARKDOWN = """\
### Recall@K in percent, glyphs; convnet

| config | loss | size | seeds | R@1 | R@2 | minutes |
| --- | --- | ---: | ---: | ---: | ---: | ---: |
| d¹ | ice | 8 | 1 | 90.00 | 95.00 | 1.5 |
| a\\_b² | ice | 64 | 2 | **82.00 ± 2.83** | 90.00 ± 0.00 | 1.5 |
| paper |  |  |  | 80.0 (+2.00) | – |  |
| c | – | 64 | 1 | 70.00 | – | 1.5 |
| pooled features |  |  |  | 71.00 | – |  |

±: standard deviation over the seeds

Bold: the best of the rows that are comparable

¹ not comparable with the others: model.embedding\\_size=8 instead of 64

² not measured as the paper's values: model.backbone=convnet instead of bn\\_inception
"""

LATEX = r"""% In the preamble: \usepackage{booktabs}

\begin{table}
  \centering
  \setlength{\belowcaptionskip}{6pt}
  \caption{Recall@K in percent, glyphs; convnet}
  \label{tab:runs-glyphs}
  \begin{tabular}{llrrrrr}
    \toprule
    config & loss & size & seeds & R@1 & R@2 & minutes \\
    \midrule
    d\textsuperscript{1} & ice & 8 & 1 & 90.00 & 95.00 & 1.5 \\
    a\_b\textsuperscript{2} & ice & 64 & 2 & \textbf{82.00 $\pm$ 2.83} & 90.00 $\pm$ 0.00 & 1.5 \\
    \quad paper &  &  &  & 80.0 (+2.00) & -- &  \\
    c & -- & 64 & 1 & 70.00 & -- & 1.5 \\
    \quad pooled features &  &  &  & 71.00 & -- &  \\
    \bottomrule
  \end{tabular}
  \par\medskip
  \begin{minipage}{\linewidth}
    \footnotesize\raggedright
    $\pm$: standard deviation over the seeds\par
    Bold: the best of the rows that are comparable\par
    \textsuperscript{1} not comparable with the others: model.embedding\_size=8 instead of 64\par
    \textsuperscript{2} not measured as the paper's values: model.backbone=convnet instead of bn\_inception\par
  \end{minipage}
\end{table}
"""  # noqa: E501

CSV = """\
table,row,dataset,config,settings,loss,backbone,embedding_size,minutes,measure,k,mean,std,ci95,seeds,paper,difference,best,comparable,notes
"Recall@K in percent, glyphs; convnet",d,glyphs,d,,ice,convnet,8,1.5,recall,1,90.0,,,1,,,false,false,NOTE0
"Recall@K in percent, glyphs; convnet",d,glyphs,d,,ice,convnet,8,1.5,recall,2,95.0,,,1,,,false,false,NOTE0
"Recall@K in percent, glyphs; convnet",a_b,glyphs,a_b,,ice,convnet,64,1.5,recall,1,82.0,STD,CI,2,80.0,2.0,true,true,NOTE1
"Recall@K in percent, glyphs; convnet",a_b,glyphs,a_b,,ice,convnet,64,1.5,recall,2,90.0,0.0,0.0,2,,,false,true,NOTE1
"Recall@K in percent, glyphs; convnet",c,glyphs,c,,,convnet,64,1.5,recall,1,70.0,,,1,,,false,true,
"Recall@K in percent, glyphs; convnet",c,glyphs,c,,,convnet,64,1.5,recall_of_features,1,71.0,,,1,,,false,true,
"""  # noqa: E501


def test_text():
    assert [line.rstrip() for line in render("text").splitlines()] == [*TEXT.splitlines(), ""]


def test_markdown():
    assert render("markdown") == MARKDOWN


def test_latex():
    assert render("latex") == LATEX


def test_csv():
    (wanted, found) = (list(csv.DictReader(io.StringIO(t))) for t in (CSV, render("csv")))
    assert list(found[0]) == list(wanted[0])
    for row, other in zip(found, wanted, strict=True):
        for key, value in other.items():
            if value == "STD":
                assert float(row[key]) == pytest.approx(8**0.5)
            elif value == "CI":  # the 97.5 % point of Student's t with one degree of freedom
                assert float(row[key]) == pytest.approx(12.7062047 * 2)
            elif value.startswith("NOTE"):
                assert row[key] == NOTES[int(value[-1])]
            elif key in ("mean", "difference") and value:
                assert float(row[key]) == pytest.approx(float(value))
            else:
                assert row[key] == value, key


def test_json():
    document = json.loads(render("json"))
    assert list(document) == ["version", "tables"]
    assert document["version"] == 1
    (table,) = document["tables"]
    assert list(table) == ["title", "shape", "rows", "remarks", "notes"]
    assert table["shape"] == "runs"
    assert table["notes"] == [{"mark": n, "text": note} for n, note in enumerate(NOTES, start=1)]
    assert [row["title"] for row in table["rows"]] == ["d", "a_b", "c"]
    (entry,) = table["rows"][1]["entries"]
    assert list(entry) == ["dataset", "experiment", "comparable", "marks", "measures"]
    assert (entry["dataset"], entry["comparable"], entry["marks"]) == ("glyphs", True, [2])
    assert entry["experiment"] == {
        "config": "a_b",
        "digest": "aa",
        "settings": [],
        "dataset": {"name": "glyphs", "fingerprint": "f0"},
        "loss": "ice",
        "backbone": "convnet",
        "embedding_size": 64,
        "minutes": 1.5,
        "runs": [{"run": f"a_b-aa-s{n}", "seed": n, "folder": None} for n in (0, 1)],
    }
    first, second = entry["measures"]
    assert first["values"] == [80.0, 84.0]
    assert first | {"std": 0, "ci95": 0} == {
        "measure": "recall",
        "k": 1,
        "mean": 82.0,
        "std": 0,
        "ci95": 0,
        "values": [80.0, 84.0],
        "paper": 80.0,
        "difference": 2.0,
        "best": True,
    }
    assert (second["k"], second["paper"], second["difference"]) == (2, None, None)


@pytest.mark.filterwarnings("ignore:Table . has no columns")
def test_every_number_of_the_csv_is_in_the_json():
    runs = [r for name in ("ice_sop", "ablation/scale_sop", "cce_cub") for r in results_of(name)]
    runs += RUNS
    for shape in ("runs", "table2", "table3"):
        rows = list(csv.DictReader(io.StringIO(render("csv", runs, shape=shape))))
        found = [
            (row["title"], entry["dataset"], measure)
            for table in json.loads(render("json", runs, shape=shape))["tables"]
            for row in table["rows"]
            for entry in row["entries"]
            for measure in entry["measures"]
        ]
        assert len(rows) == len(found) > 0
        for row, (title, dataset, measure) in zip(rows, found, strict=True):
            assert (row["row"], row["dataset"]) == (title, dataset)
            assert int(row["seeds"]) == len(measure["values"])
            assert (row["measure"], int(row["k"])) == (measure["measure"], measure["k"])
            for key in ("mean", "std", "ci95", "paper", "difference"):
                value = float(row[key]) if row[key] else None
                assert value == measure[key]


def test_the_interval_is_shown_when_asked_for():
    text = render("text", spread="ci")
    assert "82.00 ± 25.41" in text
    assert "±: half of the 95 % interval of the mean over the seeds, by Student's t" in text


class _Parser(HTMLParser):
    """Notes every tag with its attributes, the text of each, and that all are closed."""

    EMPTY = ("meta", "wbr", "!doctype")

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.text = [], [], {}

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        for tag in self.open:
            self.text[tag] = self.text.get(tag, "") + data


def parsed(html):
    parser = _Parser()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser


def test_html():
    html = render("html")
    page = parsed(html)
    assert html.startswith("<!doctype html>\n")
    assert page.text["caption"] == "Recall@K in percent, glyphs; convnet"
    assert page.text["strong"] == "82.00 ± 2.83"
    scopes = [found.get("scope") for tag, found in page.tags if tag == "th"]
    assert scopes == ["col"] * 7 + ["row"] * 5
    # numbers first, for narrow screens
    heads = "config", "R@1", "R@2", "minutes", "loss", "size", "seeds"
    assert re.findall(r'<th scope="col".*?>(.*)</th>', html) == list(heads)
    assert re.findall(r"<t[hd].*?>(.*)</t[hd]>", html.split("<tbody>")[1])[:7] == [
        *("d<sup>1</sup>", "90.00", "95.00", "1.5", "ice", "8", "1")
    ]
    assert '<th scope="row">a_<wbr>b<sup>2</sup></th>' in html
    assert f"<p><sup>1</sup> {NOTES[0]}</p>" in html
    assert not re.search(r"https?:|src=|href=|@import|url\(", html)
    assert "prefers-color-scheme: dark" in html


def test_heads_of_several_columns():
    runs = [r for name in ("ice_sop", "rll_cub", "ice_lmh_cars") for r in results_of(name)]
    page = parsed(render("html", runs, shape="table3"))
    groups = [found for tag, found in page.tags if tag == "th" and found["scope"] == "colgroup"]
    assert [int(found["colspan"]) for found in groups] == [4, 4, 3]
    assert sum(tag == "tbody" for tag, _ in page.tags) == 2
    spans = [int(found["span"]) for tag, found in page.tags if tag == "colgroup"]
    assert spans == [1, 4, 4, 3]
    text = render("text", runs, shape="table3").splitlines()
    assert re.fullmatch(r" +CARS196 +CUB-200-2011 +SOP", text[1])
    assert re.fullmatch(r"K( +[1248]){8} +1 +10 +100 *", text[2])
    assert "| K | CARS196 R@1 | CARS196 R@2 |" in render("markdown", runs, shape="table3")
    latex = render("latex", runs, shape="table3")
    assert r" & \multicolumn{4}{c}{CARS196} & \multicolumn{4}{c}{CUB-200-2011} & " in latex
    assert r"\cmidrule(lr){2-5} \cmidrule(lr){6-9} \cmidrule(lr){10-12}" in latex
    assert latex.count(r"\midrule") == 2


# ---- what strangers call things

NAMES = ["<script>alert(1)</script>", "a_b & 50%", "=cmd|' /C calc'!A0", "[x](javascript:1)"]
NAMES += ["\x1b[31mred\n", '" onmouseover="x', "@SUM(1)", "é中\u202e", "<!--", "**b** `c` | \\|"]


@pytest.fixture
def hostile():
    runs = [
        result(name, {1: 0.5 + n / 100}, digest=str(n), dataset=NAMES[0]) | {"loss": name}
        for n, name in enumerate(NAMES)
    ]
    settings = [{name: n} for n, name in enumerate(NAMES)]
    return [run | {"settings": s} for run, s in zip(runs, settings, strict=True)]


def test_html_shows_names_as_text(hostile):
    html = render("html", hostile)
    page = parsed(html)
    known = {"html", "head", "meta", "title", "style", "body", "main", "h1", "figure", "div"}
    known |= {"table", "caption", "span", "thead", "tbody", "tr", "th", "td", "strong", "sup"}
    assert {tag for tag, _ in page.tags} <= known | {"figcaption", "p", "wbr"}
    assert {key for _, found in page.tags for key in found} <= {
        *("lang", "charset", "name", "content", "http-equiv", "class", "role", "tabindex"),
        *("aria-label", "scope", "colspan", "span"),
    }
    for name in ("<script>alert(1)</script>", "a_b & 50%", '" onmouseover="x', "<!--"):
        assert name in page.text["table"]


def test_markdown_shows_names_as_text(hostile):
    markdown = render("markdown", hostile)
    assert "&lt;script>alert(1)&lt;/script>" in markdown
    assert "a\\_b &amp; 50%" in markdown
    assert "\\[x\\](javascript:1)" in markdown
    assert "\\*\\*b\\*\\* \\`c\\` \\| \\\\\\|" in markdown
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in lines}) == 1


def test_no_spreadsheet_runs_a_name(hostile):
    rows = list(csv.DictReader(io.StringIO(render("csv", hostile))))
    for row in rows:
        for key in ("table", "row", "dataset", "config", "settings", "loss", "notes"):
            assert not row[key].startswith(("=", "+", "-", "@", "\t", "\r"))
    assert {"'=cmd|' /C calc'!A0", "'@SUM(1)", "a_b & 50%"} <= {row["config"] for row in rows}
    assert float(min(row["mean"] for row in rows)) == 50.0


def test_json_has_names_as_they_are(hostile):
    text = render("json", hostile)
    assert text.isascii()
    rows = json.loads(text)["tables"][0]["rows"]
    assert {row["title"] for row in rows} == set(NAMES)


@pytest.mark.parametrize("kind", list(leaderboard.FORMATS))
def test_nothing_steers_a_terminal(kind, hostile):
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", render(kind, hostile))


@pytest.mark.parametrize("kind", list(leaderboard.FORMATS))
def test_marks_are_in_every_format(kind):
    found = render(kind)
    other = "embedding\\_size" if kind in ("markdown", "latex") else "embedding_size"
    assert f"{other}=8 instead of 64" in found.replace("<wbr>", "")


def test_a_result_tells_where_it_is_from(tmp_path):
    write_runs(tmp_path, *RUNS[:2])
    runs = leaderboard.load(tmp_path)
    assert [run["folder"] for run in runs] == [str(tmp_path / f"a_b-aa-s{n}") for n in (0, 1)]
    document = json.loads(render("json", runs))
    (entry,) = document["tables"][0]["rows"][0]["entries"]
    assert entry["experiment"]["runs"][1]["folder"] == str(tmp_path / "a_b-aa-s1")
    assert "folder" not in json.loads((tmp_path / "a_b-aa-s0" / "result.json").read_text())
