import pytest

from skewflow.lab.files import append_rows, repository_table, write_atomically


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
    assert repository_table("results").exists()
