"""zoo list and zoo show: losses by what they look at and by year, and what is related."""

from __future__ import annotations

import re

import pytest

import zoo
from zoo import registry
from zoo.cli.listing import losses
from zoo.registry.related import related


def test_losses_are_grouped_and_the_oldest_comes_first(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    status, out, _ = command("list", "losses")
    assert status == 0
    titles = [out.index(title) for kind, title in losses.KINDS.items() if kind]
    assert titles == sorted(titles)
    listed = [line.split()[0] for line in out.splitlines() if line.split()[:1]]
    for name in zoo.names("losses"):
        assert listed.count(name) == 1
    by_kind = {}
    for name in listed:
        if name in zoo.names("losses"):
            one = registry.component("losses", name)
            by_kind.setdefault(one.facts["kind"], []).append(losses.year_of(one))
    assert by_kind.keys() == losses.KINDS.keys() - {""}
    assert all(years == sorted(years) for years in by_kind.values())


def test_a_filter_by_kind_and_year(command):
    _, out, _ = command("list", "losses", "--kind", "proxy", "--since", "2020")
    assert "proxy_anchor" in out
    assert "proxy_nca " not in out  # of 2017
    assert "multi_similarity" not in out
    _, out, _ = command("list", "losses", "--kind", "pair", "--kind", "triplet")
    assert "contrastive" in out
    assert "triplet_semihard" in out
    assert "proxy_anchor" not in out


def test_other_kinds_of_components_have_years_too(command):
    _, out, _ = command("list", "miners", "--since", "2019")
    assert "multi_similarity" in out
    assert "batch_hard" not in out  # of 2017
    assert command("list", "losses", "--since", "2999")[1].strip() == "there are no such losses"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            ["losses", "--kind", "prxy"],
            "--kind prxy: losses are of no such kind; did you mean proxy?",
        ),
        (["losses", "--kind", "x"], "there are pair, triplet, list, proxy, classifier, clustering"),
        (["miners", "--kind", "pair"], "--kind is a choice of losses: zoo list losses --kind pair"),
        (["losses", "--since", "old"], "--since"),
    ],
)
def test_what_cannot_be_chosen(given, says, command):
    status, _, err = command("list", *given)
    assert status == 2
    assert says in " ".join(re.sub(r"[│╭╮╰╯─]", " ", err).split())


def names_of(kind, name):
    return [str(one) for one in related(registry.component(kind, name))]


def test_related_components():
    assert "ntxent" in names_of("losses", "ice")
    assert "ice" in names_of("losses", "ntxent")  # from the other side too
    assert "multi_similarity (miner)" in names_of("losses", "multi_similarity")  # of one paper
    assert "margin (loss)" in names_of("miners", "distance_weighted")


def test_what_a_loss_names_is_there():
    known = {name for kind in registry.KINDS for name in registry.names(kind)}
    for name in zoo.names("losses"):
        named = registry.component("losses", name).facts.get("related", "")
        assert set(filter(None, named.split(", "))) <= known - {name}, name


def test_show_names_them(command):
    assert "related  " in command("show", "losses", "ice")[1]


def test_what_a_loss_asks_of_a_run_is_shown(command):
    _, out, _ = command("show", "losses", "divide_conquer")
    words = " ".join(out.split())
    assert "kind triplet cost N² sampler grouped" in words
    assert "asks for which images are in the batch; how many training images there are" in words
    assert "the sizes of the parts of an embedding; a look at the data between epochs" in words
    _, out, _ = command("show", "losses", "ice")
    assert "asks for" not in out
