"""The checks can fail: a mutant for each, six losses of PML; and a sound loss passes them all."""

from __future__ import annotations

import sys
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from zoo import UserError, checks, registry
from zoo.checks import (
    CHECKS,
    CheckFailedError,
    Subject,
    parametrize_with_checks,
    running,
    subject,
)
from zoo.checks.losses import use
from zoo.losses._shared import Loss, masks, unit


class SoundLoss(Loss):
    """Logistic loss of all pairs."""

    def value(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        positive, negative = masks(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        cosine = unit(embeddings) @ unit(ref_emb).T
        to_positives = self.mean(F.softplus(4 - 8 * cosine), positive)
        to_negatives = self.mean(F.softplus(8 * cosine - 4), negative)
        return self.more(to_positives + to_negatives, embeddings, labels, cosine)

    def mean(self, x, mask):
        return torch.where(mask, x, 0).sum() / mask.sum().clamp_min(1)

    def more(self, value, x, labels, cosine):
        """Return the value; mutants do something to it."""
        return value


class WeightedLoss(nn.Module):
    """A stranger's classifier: it says nothing of itself, and has weights."""

    def __init__(self, num_classes, embedding_size, spare=0):
        super().__init__()
        self.classifier = nn.Linear(embedding_size, num_classes + spare)

    def forward(self, embeddings, labels):
        with torch.autocast(embeddings.device.type, enabled=False):
            weight = self.classifier.weight
            return F.cross_entropy(self.classifier(embeddings.to(weight.dtype)), labels)


@pytest.mark.slow
@parametrize_with_checks(["ice", SoundLoss, WeightedLoss])
def test_a_sound_loss(loss, check):
    check(loss)


# ---- a mutant for each check


def mutant(check, seen):
    """Register a class as the one that a check has to find, with words of its message."""

    def decorate(cls):
        MUTANTS[check] = (cls, seen)
        return cls

    return decorate


MUTANTS = {}


@mutant(
    "check_gradcheck", r"at image \d, dimension \d .* the gradient is .*, central differences say"
)
class DoubleGradient(SoundLoss):
    def more(self, value, x, labels, cosine):
        return 2 * value - value.detach()


@mutant("check_float32", "in float32 the value is")
class Cancels(SoundLoss):
    def more(self, value, x, labels, cosine):
        return (value + 1e5) - 1e5


@mutant("check_half_precision", "in bfloat16, not float32, the value is")
class RoughInHalf(SoundLoss):
    def forward(self, embeddings, *more):
        return super().forward(embeddings, *more) * (1 if embeddings.dtype.itemsize > 2 else 1.1)


@mutant("check_autocast", "under autocast the value is")
class RoughInAutocast(SoundLoss):
    def forward(self, embeddings, *more):
        rough = torch.is_autocast_enabled("cpu")
        return super().forward(embeddings, *more) * (1.1 if rough else 1)


@mutant("check_large_gaps", "in float32 the value is .* and the gradient has norm .*, in float64")
class Capped(SoundLoss):
    def value(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        positive, negative = masks(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        logit = 100 * unit(embeddings) @ unit(ref_emb).T
        right = torch.where(positive, logit.sigmoid(), (-logit).sigmoid())
        return self.mean(-(right + 1e-38).log(), positive | negative)


@mutant("check_permutation", "in reverse order the value is .* instead of .*\n[23] images:")
class FirstImage(SoundLoss):
    def more(self, value, x, labels, cosine):
        return value * (1 + cosine[0].sum())


@mutant("check_relabelling", r"with labels \[\d\] the value is .*\n1 image:")
class LabelIsANumber(SoundLoss):
    def more(self, value, x, labels, cosine):
        return value + labels.double().mean().to(value.dtype) + 0 * value


@mutant("check_label_values", "with labels above 2\\^24 the value is .*\n2 images:")
class LabelsAsFloat32(SoundLoss):
    def value(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        return super().value(embeddings, labels.float(), None, ref_emb, ref_labels.float())


@mutant("check_rotation", "after a rotation the value is .*\n1 image:")
class FirstAxis(SoundLoss):
    def more(self, value, x, labels, cosine):
        return value + x[:, 0].mean()


@mutant("check_scale_invariance", "with embeddings a tenth as long the value is")
class Norms(SoundLoss):
    def more(self, value, x, labels, cosine):
        return value + x.norm(dim=1).mean()


@mutant("check_collapsed", "in float32 the value is -?inf.*\n1 image:")
class LogSpread(SoundLoss):
    def more(self, value, x, labels, cosine):
        return value - (x - x.mean(0)).square().sum().log()


@mutant("check_antipodal", "in float32 the value is inf.*\n2 images:")
class OneOverOpposite(SoundLoss):
    def more(self, value, x, labels, cosine):
        return value + (1 / (1 + cosine.clamp(-1, 1))).mean()


@mutant("check_perfect", "the gradient of 2 of 2 images is NaN or infinite\n2 images:")
class Angle(SoundLoss):
    def more(self, value, x, labels, cosine):
        self_pairs = torch.eye(len(x), dtype=torch.bool)
        return value + cosine.masked_fill(self_pairs, 0).acos().mean()


@mutant("check_duplicates", "infinite|inf")
class LogDistance(SoundLoss):
    def more(self, value, x, labels, cosine):
        distances = (x[:, None] - x).square().sum(2) + torch.eye(len(x))
        return value - distances.log().mean()


@mutant("check_huge_norms", "in float32 the value is inf\n1 image:")
class Exponential(SoundLoss):
    def more(self, value, x, labels, cosine):
        return value + x.abs().exp().mean().log()


@mutant(
    "check_zero_rows", "in float32 the value is inf\n1 image:\n  label .: \\[0, 0, 0, 0, 0, 0\\]"
)
class OneOverNorm(SoundLoss):
    def more(self, value, x, labels, cosine):
        return value + (1 / x.norm(dim=1)).mean()


@mutant("check_nan_embeddings", "with NaN in one of the embeddings the value is")
class FillsNaN(SoundLoss):
    def forward(self, embeddings, *arguments, **more):
        return super().forward(embeddings.nan_to_num(), *arguments, **more)


@mutant("check_no_positives", "in float32 the value is nan\n1 image:")
class DividesByPositives(SoundLoss):
    def more(self, value, x, labels, cosine):
        return value + 0 / ((labels[:, None] == labels).sum() - len(labels))


@mutant(
    "check_no_negatives", "in float32 it raised (Runtime|Index)Error: .*test_losses.py:.*\n1 image:"
)
class NearestNegative(SoundLoss):
    def more(self, value, x, labels, cosine):
        return value + cosine[labels[:, None] != labels].max()


@mutant("check_one_image", "in float32 it raised IndexError: .*test_losses.py:")
class SecondImage(SoundLoss):
    def more(self, value, x, labels, cosine):
        return value + cosine[:, 1].mean()


@mutant("check_unequal_classes", "it raised RuntimeError: .*test_losses.py:.*\n3 images:")
class Rectangular(SoundLoss):
    def more(self, value, x, labels, cosine):
        return value + 0 * x.reshape(len(labels.unique()), -1, x.shape[1]).sum()


@mutant(
    "check_repeated_steps", "in step 2 its backward pass raised RuntimeError: Trying to backward"
)
class KeepsItsGraph(SoundLoss):
    average = 0.0

    def more(self, value, x, labels, cosine):
        self.average = 0.9 * self.average + value
        return self.average


@mutant("check_state_dict", "restored from its state_dict after three steps the value is")
class CountsInVain(SoundLoss):
    calls = 0

    def more(self, value, x, labels, cosine):
        self.calls += 1
        return value * (1 + 0.1 * self.calls)


@mutant("check_moves", r"weight, a tensor of shape \(1,\), does not move with the loss")
class PlainTensor(SoundLoss):
    def __init__(self):
        super().__init__()
        self.weight = torch.ones(1)


def test_a_tensor_of_the_extra_state_is_saved():
    class Remembers(SoundLoss):
        def __init__(self):
            super().__init__()
            self.seen = [torch.ones(1)]
            self.last = self.seen[0]

        def get_extra_state(self):
            return {"seen": self.seen}

        def set_extra_state(self, state):
            self.seen = state["seen"]
            self.last = self.seen[0]

    assert running.run(Remembers, only=["check_moves"]).ok


@mutant("check_determinism", "the same call gives .* and .*\n1 image:")
class Draws(SoundLoss):
    def more(self, value, x, labels, cosine):
        return value + 1e-3 * torch.rand(())


@mutant("check_leaves_inputs", "it writes to the embeddings\n1 image:")
class NormalisesInPlace(SoundLoss):
    def forward(self, embeddings, *arguments, **more):
        embeddings.detach().div_(embeddings.detach().norm(dim=1, keepdim=True))
        return super().forward(embeddings, *arguments, **more)


@mutant(
    "check_memory", r"growth as N\^3\.0; the largest tensor is \(128, 128, 128\) float32, 8.4 MB"
)
class AllTriplets(SoundLoss):
    def more(self, value, x, labels, cosine):
        return value + 0 * (cosine[:, :, None] - cosine[:, None, :]).sigmoid().mean()


@mutant("check_learning", "retrieval is hardly better")
class WrongSign(SoundLoss):
    def more(self, value, x, labels, cosine):
        return -value


@mutant("check_gallery", "the labels of a gallery do not matter")
class GalleryOfOneClass(SoundLoss):
    def value(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        if ref_emb is not embeddings:
            ref_labels = torch.zeros_like(ref_labels)
        return super().value(embeddings, labels, indices_tuple, ref_emb, ref_labels)


@mutant("check_mined", "the mined triplets do not matter")
class IgnoresMiner(SoundLoss):
    def value(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        return super().value(embeddings, labels, None, ref_emb, ref_labels)


@mutant("check_rows", r"in parts of \[\d+, .*\] images the value is")
class ForgetsTheOthers(SoundLoss):
    """Each process takes the mean of its own images alone."""

    def part(self, embeddings, labels, rows):
        return self(embeddings[rows], labels[rows]).reshape(1), embeddings.new_ones(1)


@pytest.mark.parametrize("scale", [1, 2])
def test_parameters_of_parts_are_compared(scale):
    class Parts(SoundLoss):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def more(self, value, x, labels, cosine):
            return value * self.weight

        def part(self, embeddings, labels, rows):
            whole = self(embeddings, labels) * len(labels[rows]) / len(labels)
            wrong = (scale - 1) * (self.weight - self.weight.detach())
            return (whole + wrong).reshape(1), embeddings.new_full(
                (1,), len(labels[rows]) / len(labels)
            )

    if scale == 1:
        checks.check_rows(Subject(Parts))
    else:
        with pytest.raises(CheckFailedError, match="of its parameter weight the gradient"):
            checks.check_rows(Subject(Parts))


def test_there_is_a_mutant_for_each_check():
    assert set(MUTANTS) == {check.__name__ for check in CHECKS}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_the_check_finds_its_mutant(name):
    cls, seen = MUTANTS[name]
    with pytest.raises(CheckFailedError, match=f"(?s){seen}"):
        getattr(checks, name)(Subject(cls))


class Silent(SoundLoss):
    """It says that it takes neither gallery nor mined pairs, and takes both."""

    gallery = mined = False

    def _check_meaning(self, indices_tuple, ref_emb):
        pass


class Refuses(SoundLoss):
    """It refuses both, and does not say so."""

    gallery = mined = None

    def _check_meaning(self, indices_tuple, ref_emb):
        if indices_tuple is not None or ref_emb is not None:
            raise UserError("never")


@pytest.mark.parametrize("check", [use.check_gallery, use.check_mined])
def test_what_has_no_meaning_is_refused(check):
    with pytest.raises(CheckFailedError, match="it declares that .* has no meaning, but takes it"):
        check(Subject(Silent))
    with pytest.raises(subject.NotApplicableError, match="never"):
        check(Subject(Refuses))


# ---- the faults of pytorch-metric-learning


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "check", "seen"),
    [
        ("InstanceLoss", {}, "permutation", "in reverse order the value is .*\n3 images:"),
        ("InstanceLoss", {}, "relabelling", "with labels .* the value is .*\n2 images:"),
        ("HistogramLoss", {}, "perfect", "raised RuntimeError: index 101 is out of bounds"),
        ("SmoothAPLoss", {}, "permutation", "the value is .*\n4 images:"),
        ("SmoothAPLoss", {}, "unequal_classes", "raised ValueError: All classes must have"),
        ("SmoothAPLoss", {}, "label_values", "below 0 it raised RuntimeError: bincount"),
        ("SmoothAPLoss", {}, "memory", r"N\^3.0; the largest tensor is \(128, 128, 128\)"),
        ("DynamicSoftMarginLoss", {}, "repeated_steps", "in step 2 its backward pass raised"),
        (
            "DynamicSoftMarginLoss",
            {},
            "moves",
            r"hist_, a tensor of shape \(10,\), does not move with the loss",
        ),
        ("DynamicSoftMarginLoss", {}, "learning", "in step 2 its backward pass raised"),
        ("TupletMarginLoss", {}, "perfect", "the value is 0, but the gradient of 2 of 3 images"),
        ("NTXentLoss", {}, "memory", r"N\^3.0; the largest tensor is \(384, 15872\)"),
        ("NTXentLoss", {"temperature": 1 / 64}, "large_gaps", "in float32 .*, in float64"),
    ],
)
def test_known_faults_of_pml_are_found(name, arguments, check, seen):
    if f"pml.{name}" not in registry.pml_names("losses"):
        pytest.skip("this pytorch-metric-learning is too old to have it")
    report = running.run(f"pml.{name}", arguments, only=[f"check_{check}"])
    assert not report.ok
    (record,) = report.records
    assert record.outcome == "failed"
    with pytest.raises(CheckFailedError, match=f"(?s){seen}"):
        raise CheckFailedError(record.note)


# ---- what is made of the outcomes


def test_the_smallest_batch_is_shown():
    class OneAndTwo(SoundLoss):
        def more(self, value, x, labels, cosine):
            both = (labels == 1).any() & (labels == 2).any()
            return value + torch.where(both, torch.nan, 0.0)

    with pytest.raises(CheckFailedError) as failed:
        checks.check_zero_rows(Subject(OneAndTwo))
    lines = str(failed.value).splitlines()
    assert lines[:2] == ["in float32 the value is nan", "2 images:"]
    assert sorted(line[:9] for line in lines[2:]) == ["  label 1", "  label 2"]


def test_expected_failures_are_strict():
    class Says(FirstImage):
        expected_failures = {  # noqa: RUF012
            "check_permutation": "the first image counts more",
            "check_collapsed": "it does not really",
        }

    report = running.run(Says, only=["check_permutation", "check_collapsed", "check_antipodal"])
    outcomes = {record.check: (record.outcome, record.note) for record in report.records}
    assert outcomes["check_permutation"] == ("expected failure", "the first image counts more")
    assert outcomes["check_antipodal"] == ("passed", "")
    assert outcomes["check_collapsed"][0] == "unexpected pass"
    assert not report.ok
    assert list(report.failures) == ["check_collapsed"]
    assert running.run(Says, only=["check_permutation"]).ok


def test_what_a_check_does_not_foresee_is_a_failure_and_not_the_end():
    class CannotMove(SoundLoss):
        def double(self):
            raise OSError("stuck")

    first, second = running.run(CannotMove, only=["check_moves", "check_determinism"]).records
    assert (first.check, first.outcome) == ("check_moves", "failed")
    assert "OSError: stuck" in first.note
    assert second.outcome == "passed"


class Raises(nn.Module):
    def forward(self, x, y, indices_tuple=None, ref_emb=None, ref_labels=None):
        return (x @ x.new_zeros(len(x) + 1)).mean()  # a message with sizes that go with the batch


class NotANumber(nn.Module):
    def forward(self, x, y, indices_tuple=None, ref_emb=None, ref_labels=None):
        return x.sum() * float("nan")


class Vector(nn.Module):
    def forward(self, x, y, indices_tuple=None, ref_emb=None, ref_labels=None):
        return x.square().sum(1)


@pytest.mark.parametrize("loss", [Raises, NotANumber, Vector])
def test_a_fault_of_all_batches_is_told_once(loss):
    report = running.run(loss)
    ((names, note),) = report.faults
    assert list(names) == list(report.failures)
    assert len(names) > 20
    assert note == report.failures["check_gradcheck"]
    if loss is Raises:
        assert "(test_losses.py:" in note  # and not the line of torch that noticed
        assert all("(test_losses.py:" in other for other in report.failures.values())


def test_faults_of_a_few_batches_are_told_each():
    class TwoOnly(SoundLoss):
        def more(self, value, x, labels, cosine):
            same = (x[1:] == x[:1]).all(1).any()
            return value + torch.where(same, torch.nan, 0.0)

    report = running.run(TwoOnly, only=["check_collapsed", "check_zero_rows", "check_permutation"])
    assert report.faults == [((name,), note) for name, note in report.failures.items()]
    assert len(report.faults) == 2


def test_an_expected_failure_of_no_check_is_refused():
    class Misspelt(SoundLoss):
        expected_failures = {"check_permutatoin": "a slip"}  # noqa: RUF012

    with pytest.raises(UserError, match="did you mean check_permutation?"):
        running.run(Misspelt, only=["check_memory"])


def test_ids_and_marks_of_pytest():
    class Says(FirstImage):
        expected_failures = {"check_permutation": "the first image"}  # noqa: RUF012

    names, parameters = parametrize_with_checks(["ice", Says, WeightedLoss]).mark.args
    assert names == ("loss", "check")
    by_id = {p.id: p for p in parameters}
    assert len(by_id) == len(parameters)
    assert "ice-check_gradcheck" in by_id
    assert "Says-check_rotation" in by_id
    assert "WeightedLoss-check_rotation" not in by_id
    assert by_id["ice-check_permutation"].marks == ()
    (mark,) = by_id["Says-check_permutation"].marks
    assert mark.name == "xfail"
    assert mark.kwargs["strict"] is True
    assert mark.kwargs["reason"] == "the first image"


def test_checks_are_chosen_by_what_a_loss_says():
    everything = {check.__name__ for check in CHECKS}
    assert {check.__name__ for check in running.checks_for("ice")} == everything
    without = everything - {check.__name__ for check in running.checks_for(WeightedLoss)}
    assert without == {
        "check_gallery",
        "check_label_values",
        "check_mined",
        "check_relabelling",
        "check_rotation",
        "check_rows",
        "check_scale_invariance",
    }


def test_all_checks_are_public_and_explained():
    for check in CHECKS:
        assert check.__name__ in checks.__all__
        assert getattr(checks, check.__name__) is check
        assert check.__doc__
    assert list(running.summaries()) == [check.__name__ for check in CHECKS]
    for summary in running.summaries().values():
        assert summary.endswith(".")
        assert "``" not in summary


@pytest.mark.parametrize(
    ("loss", "arguments", "message"),
    [
        ("icee", {}, "did you mean ice?"),
        ("ice", {"scael": 3}, "did you mean scale?"),
        ("ice", {"scale": -1.0}, "scale must be positive"),
        ("no_such_module:Loss", {}, "cannot import 'no_such_module': ModuleNotFoundError"),
        (WeightedLoss, {"spear": 1}, "did you mean spare?"),
        (SoundLoss(), {}, "give its class"),
        (dict, {}, "is a dict, not a torch.nn.Module"),
    ],
)
def test_what_cannot_be_checked(loss, arguments, message):
    with pytest.raises(UserError, match=message):
        running.run(loss, arguments)


def test_required_arguments_may_be_said_by_the_class():
    class Demanding(SoundLoss):
        check_arguments = {"factor": 2.0}  # noqa: RUF012

        def __init__(self, factor):
            super().__init__()
            self.factor = factor

    assert Subject(Demanding).build().factor == 2
    assert Subject(Demanding, {"factor": 3.0}).build().factor == 3


class RaisesKind(SoundLoss):
    @property
    def kind(self):
        raise RuntimeError("which?")


def saying(**attributes):
    return type("Says", (SoundLoss,), attributes)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (saying(expected_failures=None), "expected_failures of Says must be a dict of names of ch"),
        (saying(expected_failures=3), r"{check: reason}, not 3"),
        (
            saying(expected_failures=["check_rotation"]),
            r"{check: reason}, not \['check_rotation'\]",
        ),
        (saying(expected_failures={"check_rotation": None}), "expected_failures of Says must be"),
        (
            saying(check_arguments=7),
            r"check_arguments of Says must be a dict of arguments.*, not 7",
        ),
        (saying(kind=3), "kind of Says must be text, such as 'pair', not 3"),
        (saying(mined="no"), "mined of Says must be True or False, not 'no'"),
        (RaisesKind, "reading kind of RaisesKind failed: RuntimeError: which?"),
    ],
)
def test_what_a_loss_says_of_itself_is_checked(loss, message):
    with pytest.raises(UserError, match=message):
        running.run(loss)


@pytest.mark.slow
def test_random_state_is_left_alone():
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    running.run(Draws, only=["check_determinism", "check_learning", "check_gradcheck"])
    assert torch.equal(torch.rand(3), wanted)


# ---- the command


@pytest.fixture
def command(command, monkeypatch):
    """Return a function that runs ``zoo check``: (status, stdout, stderr)."""
    monkeypatch.setenv("COLUMNS", "200")
    return partial(command, "check")


@pytest.mark.slow
def test_check_a_sound_loss(command):
    status, out, err = command("ice")
    assert (status, err) == (0, "")
    for check in CHECKS:
        assert check.__name__ in out
    assert f"ice: {len(CHECKS)} passed" in out


def test_check_a_loss_of_pml(command):
    few = ["--only", "check_permutation", "--only", "check_scale_invariance"]
    status, out, _ = command("pml.TripletMarginLoss", *few)
    assert status == 0
    assert "it does not declare that it normalises" in out
    assert "check_memory" not in out
    assert "pml.TripletMarginLoss: 1 passed, 1 not applicable" in out


def test_check_with_arguments_and_a_failure(command):
    status, out, _ = command("pml.NTXentLoss", "temperature=0.015625", "--only", "check_large_gaps")
    assert status == 1
    assert "check_large_gaps every positive pair is violated" in out
    assert "pml.NTXentLoss(temperature=0.015625): 1 failed" in out


def test_check_a_class_by_its_module(command, monkeypatch, tmp_path):
    (tmp_path / "strange_loss.py").write_text(
        "import torch\nclass Mine(torch.nn.Module):\n"
        "    def forward(self, x, y):\n        return x.double().square().mean()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    status, out, _ = command("strange_loss:Mine", "--only", "check_learning")
    assert status == 1
    assert "Recall@1" in out


def test_a_loss_that_always_raises_says_so_once(command, monkeypatch, tmp_path):
    (tmp_path / "unfinished_loss.py").write_text(
        "import torch\nclass Nan(torch.nn.Module):\n"
        "    def forward(self, x, y):\n        raise NotImplementedError('not yet')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    status, out, _ = command("unfinished_loss:Nan")
    assert status == 1
    assert out.count("it raised NotImplementedError: not yet (unfinished_loss.py:4)") == 1
    assert "the same in 25 more checks: check_float32, check_half_precision" in out
    assert "unfinished_loss:Nan: 26 failed, 1 passed, 4 not applicable" in out  # no emoji for :Nan:


@pytest.mark.parametrize(
    ("source", "status", "message"),
    [
        ("sys.exit()", 2, "cannot import 'quits': SystemExit:"),
        (
            "class Mine(Base):\n  def __init__(self): sys.exit(0)",
            2,
            "building quits:Mine failed: Sys",
        ),
        ("class Mine(Base):\n  def forward(self, x, y): sys.exit(0)", 1, "it raised SystemExit: 0"),
        ("class Mine(Base):\n  def parameters(self): sys.exit(0)", 1, "failed: SystemExit: 0"),
    ],
)
def test_a_loss_that_ends_the_process_fails(
    command, monkeypatch, tmp_path, source, status, message
):
    (tmp_path / "quits.py").write_text(f"import sys\nfrom torch.nn import Module as Base\n{source}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "quits", raising=False)
    ended, out, err = command("quits:Mine", "--only", "check_learning")
    assert ended == status
    assert message in " ".join((out + err).split())


def test_the_checks_are_listed(command):
    status, out, err = command("--list")
    assert (status, err) == (0, "")
    names = [line.split()[0] for line in out.splitlines()[2:]]
    assert names == [check.__name__ for check in CHECKS]
    assert "The order of the images in the batch does not matter." in out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("odd_loss", "'odd_loss' is a file; name the class in it, odd_loss:<Class>"),
        ("odd_loss.py", "'odd_loss.py' is a file; name the class in it, odd_loss:<Class>"),
        (
            "odd_loss:mine",
            "'odd_loss:mine': odd_loss has no 'mine'; did you mean Mine?",
        ),
        ("odd_broken.py:Mine", "odd_broken.py:1)"),
        ("odd_gone:Mine", "cannot import 'odd_gone': ModuleNotFoundError: No module named"),
    ],
)
def test_a_file_that_is_named_in_another_way(command, monkeypatch, tmp_path, name, message):
    (tmp_path / "odd_loss.py").write_text("class Mine: ...")
    (tmp_path / "odd_broken.py").write_text("undefined")
    monkeypatch.chdir(tmp_path)
    status, _, err = command(name)
    assert status == 2
    assert message in err


@pytest.mark.slow
def test_check_all(command):
    status, out, _ = command("--all", "--only", "check_determinism")
    assert "ice: 1 passed" in out
    assert "pml." not in out
    assert status in (0, 1)
    assert "losses, " in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["icee"], "did you mean ice?"),
        (["ice", "--only", "check_permutations"], "did you mean check_permutation?"),
        ([], "name a loss"),
        (["ice", "scael=3"], "did you mean scale?"),
        (["ice", "rll", "scale=3"], "arguments are for one loss"),
        (["ice", "scale=[1"], "scale=[1: not valid YAML"),
    ],
)
def test_check_bad_input(command, arguments, message):
    status, out, err = command(*arguments)
    assert status == 2
    assert out == ""
    assert message in err
