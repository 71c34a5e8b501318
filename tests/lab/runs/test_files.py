import pickle
from pathlib import Path
from threading import Barrier, Thread

import pytest
import torch

from skewflow._files import load_checked, save_checked, write_atomically
from skewflow.errors import CheckpointError
from skewflow_lab.runs.files import append_rows, recorded

STATE = {"step": 7, "weights": [torch.arange(6.0).view(2, 3), torch.eye(2, dtype=torch.bfloat16)]}


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "new" / "numbers.json"
    write_atomically(path, "old")

    def fails(*_):
        raise OSError("disk full")

    monkeypatch.setattr("pathlib.Path.replace", fails)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_writers_of_one_file_never_share_a_temporary_file(tmp_path, monkeypatch):
    """Both have written before either of them gives its file the final name."""
    both, replace, failed = Barrier(2, timeout=10), Path.replace, []

    def together(source, target):
        both.wait()
        return replace(source, target)

    def write(content):
        try:
            write_atomically(tmp_path / "x", content)
        except OSError as error:
            failed.append(error)

    monkeypatch.setattr(Path, "replace", together)
    threads = [Thread(target=write, args=(text * 5,)) for text in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_text() in ("aaaaa", "bbbbb")


def test_a_checked_file_gives_back_what_was_saved_and_torch_reads_it_too(tmp_path):
    save_checked(tmp_path / "new" / "x.pt", STATE)
    for again in (
        load_checked(tmp_path / "new" / "x.pt", "Remove it."),
        torch.load(tmp_path / "new" / "x.pt", weights_only=True),
    ):
        assert again["step"] == 7
        assert all(map(torch.equal, again["weights"], STATE["weights"]))
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["x.pt"]


def test_every_damaged_byte_and_every_cut_of_a_checked_file_is_noticed(tmp_path):
    path = tmp_path / "x.pt"
    save_checked(path, STATE)
    data = path.read_bytes()
    flipped = (data[:n] + bytes([data[n] ^ 1]) + data[n + 1 :] for n in range(len(data)))
    cut = (data[:n] for n in range(0, len(data), 7))
    for damaged in (*flipped, *cut, data + b"\n"):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="must be what skewflow saved.*Remove it.") as e:
            load_checked(path, "Remove it.")
        assert str(path) in str(e.value)


def test_a_checked_file_never_runs_code_and_a_missing_one_is_a_clear_error(tmp_path):
    save_checked(tmp_path / "x.pt", {"path": Path("x")})  # its unpickling calls a function
    with pytest.raises(CheckpointError, match=r"cannot be read \(UnpicklingError\). Remove it."):
        load_checked(tmp_path / "x.pt", "Remove it.")
    (tmp_path / "y.pt").write_bytes(pickle.dumps(1))
    with pytest.raises(CheckpointError, match="does not end with its checksum"):
        load_checked(tmp_path / "y.pt", "Remove it.")
    with pytest.raises(CheckpointError, match="z.pt .*No such file or directory. Remove it."):
        load_checked(tmp_path / "z.pt", "Remove it.")


def test_rows_are_appended_below_one_header(tmp_path):
    path = tmp_path / "t.csv"
    append_rows(path, [{"a": 1, "b": "x, y"}])
    append_rows(path, [{"a": 2, "b": "z"}])
    append_rows(path, [])
    assert path.read_text() == 'a,b\n1,"x, y"\n2,z\n'


def test_rows_with_other_columns_are_refused(tmp_path):
    path = tmp_path / "t.csv"
    append_rows(path, [{"a": 1}])
    with pytest.raises(ValueError, match="same columns: .* has a; the new rows have b. Move"):
        append_rows(path, [{"b": 1}])
    assert path.read_text() == "a\n1\n"


def test_the_tables_of_this_checkout_are_found():
    assert recorded("results.csv").exists()
