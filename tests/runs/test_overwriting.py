"""What is somebody else's is not written over."""

import json

import numpy as np
import pytest
import replicas

from zoo.errors import UserError
from zoo.runs.folder import RunFolder
from zoo.search import folder
from zoo.support.files import check_folder
from zoo.trained import export


def test_a_description_goes_over_no_other_file(tmp_path):
    (tmp_path / "result.onnx.json").write_text('{"recall": {}}')
    with pytest.raises(UserError, match="would be replaced, and is not a description"):
        export._check_place(tmp_path / "result.onnx")
    (tmp_path / "model.onnx.json").write_text(
        json.dumps({"format": "onnx", "input": {}, "preparation": {}})
    )
    export._check_place(tmp_path / "model.onnx")


def test_an_index_goes_over_no_folder_of_that_name(tmp_path):
    (tmp_path / "names.json").mkdir()
    with pytest.raises(UserError, match="has other files than an index"):
        folder.check_place(tmp_path)


def test_a_sheet_goes_over_no_query(command, tmp_path):
    replicas.save_photo(tmp_path / "query.png", 0)
    query = tmp_path / "query.png"
    status, _, err = command("search", tmp_path, query, "--sheet", tmp_path / "." / "query.png")
    assert status == 2
    assert "is a query; give the sheet another name" in err


def test_embeddings_are_an_npz(command, tmp_path):
    status, _, err = command("embed", "x", tmp_path, "-o", tmp_path / "m.csv")
    assert status == 2
    assert "must end in .npz" in err


@pytest.mark.parametrize("header", [b"[", b'"'])
def test_ranks_with_any_damage_are_refused(tmp_path, header):
    np.save(tmp_path / "ranks.npy", np.ones(3, np.int32))
    data = (tmp_path / "ranks.npy").read_bytes()
    (tmp_path / "ranks.npy").write_bytes(data[:10] + header + data[11:])
    with pytest.raises(UserError, match="not the ranks of a run"):
        RunFolder(tmp_path).ranks()
    huge = data.replace(b"(3,), }", b"(3000000000000,), }"[: len(b"(3,), }") + 12])
    (tmp_path / "ranks.npy").write_bytes(huge)
    with pytest.raises(UserError, match="not the ranks of a run"):
        RunFolder(tmp_path).ranks()


def test_ranks_that_are_an_archive_are_refused(tmp_path):
    with (tmp_path / "ranks.npy").open("wb") as file:
        np.savez(file, a=np.ones(3, np.int32))
    with pytest.raises(UserError, match="not the ranks of a run"):
        RunFolder(tmp_path).ranks()


def test_metrics_of_impossible_iterations_are_left_out(tmp_path):
    lines = [{"iteration": i} for i in (1, -1, True, 10**400, 10**12)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    assert RunFolder(tmp_path).metrics() == [{"iteration": 1}]


def test_nothing_goes_over_the_files_of_a_run(command, tmp_path):
    (tmp_path / "config.yaml").write_text("")
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(UserError, match="that is the folder of a run"):
        check_folder(tmp_path / "result.json")


def test_what_comes_into_the_folder_of_an_index_meanwhile_stays(tmp_path):
    place = tmp_path / "index"
    place.mkdir()
    for name in ("index-0123456789abcdef.faiss", "names-0123456789abcdef.json"):
        (place / name).touch()
    folder.check_place(place)
    (place / "meta.json").write_text('{"embedding_size": 2, "network": ""}')
    folder.check_place(place)
    folder._remove_others(place)  # a damaged index is left as it is
    assert len(list(place.iterdir())) == 3
    (place / "meta.json").unlink()
    (place / "precious").touch()
    folder._remove_others(place)
    assert [path.name for path in place.iterdir()] == ["precious"]
    (place / "precious").unlink()
    (place / "names.json").touch()
    with pytest.raises(UserError, match=r"files that may be of an index, but no meta\.json"):
        folder.check_place(place)
    (place / "meta.json").write_text("{}")
    with pytest.raises(UserError, match=r"has a meta\.json that is not of an index"):
        folder.check_place(place)
