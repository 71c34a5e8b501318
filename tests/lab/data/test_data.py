"""Images are read from the published files, fetched where they are missing, and always checked."""

import gzip
import hashlib
import io
import tarfile
import threading
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler

import numpy as np
import pytest
import torch

from skewflow_lab.data import cifar10, default_images, load_digits_part, load_images, mnist
from skewflow_lab.data.colour import load_colours
from skewflow_lab.runs.files import RunError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SKEWFLOW_DATA", str(tmp_path / "data"))
    # Nothing listens there: no test may reach the real servers.
    monkeypatch.setattr(mnist, "URL", "http://127.0.0.1:9/")
    monkeypatch.setattr(cifar10, "URL", "http://127.0.0.1:9/cifar-10-binary.tar.gz")
    return tmp_path / "data"


@pytest.fixture
def server(tmp_path):
    """A folder that is served, and its address."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    (tmp_path / "served").mkdir()
    handler = partial(Quiet, directory=tmp_path / "served")
    with HTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield tmp_path / "served", f"http://127.0.0.1:{http.server_port}/"
        http.shutdown()
        thread.join()


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return gzip.compress(head + array.tobytes(), mtime=0)


def small_mnist(monkeypatch):
    """Four small files instead of the real ones: name to bytes."""
    files = {}
    for n, (images, labels) in enumerate(mnist.FILES.values(), start=2):
        files[images] = idx(np.arange(n * 9, dtype=np.uint8).reshape(n, 3, 3))
        files[labels] = idx(np.arange(n, dtype=np.uint8))
    for name, raw in files.items():
        monkeypatch.setitem(mnist.CHECKSUMS, name, f"sha256:{hashlib.sha256(raw).hexdigest()}")
    return files


def small_cifar10(monkeypatch):
    """Two records a file."""
    files = {}
    for n, name in enumerate(cifar10.CHECKSUMS):
        records = np.zeros((2, 3073), dtype=np.uint8)
        records[:, 0] = n, 9
        records[:, 1:] = np.arange(3072) // 1024 + 10 * n
        records[:, 1 + 33] = 255  # the red plane: row 1, column 1
        files[name] = records.tobytes()
    for name, raw in files.items():
        monkeypatch.setitem(cifar10.CHECKSUMS, name, f"md5:{hashlib.md5(raw).hexdigest()}")
    return files


def put(folder, files):
    folder.mkdir(parents=True)
    for name, raw in files.items():
        (folder / name).write_bytes(raw)


def archive(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, raw in files.items():
            member = tarfile.TarInfo(f"{cifar10.FOLDER}/{name}")
            member.size = len(raw)
            tar.addfile(member, io.BytesIO(raw))
    return out.getvalue()


def test_mnist_is_read_from_idx_files(folder, monkeypatch):
    assert default_images() == "digits"
    put(folder / "mnist", small_mnist(monkeypatch))
    assert default_images() == "mnist"
    images = load_images("mnist")
    assert torch.equal(images.pixels, torch.arange(18.0).reshape(2, 3, 3) / 255)
    assert images.labels.tolist() == [0, 1]
    assert load_images("mnist", "test").labels.tolist() == [0, 1, 2]


def test_cifar10_is_read_from_its_binary_version(folder, monkeypatch):
    put(folder / cifar10.FOLDER, small_cifar10(monkeypatch))
    images = load_images("cifar10")
    assert images.pixels.shape == (10, 3, 32, 32)
    assert images.labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert images.pixels[2, 0, 1, 1] == 1.0
    assert (images.pixels[2, :, 5, 5] * 255).round().tolist() == [10, 11, 12]
    assert load_images("cifar10", "test").labels.tolist() == [5, 9]


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-5], lambda raw: raw[:-1] + b"?", lambda _: b""]
)
def test_a_damaged_file_is_named_with_the_checksum_it_should_have(
    name, damage, folder, monkeypatch
):
    module, small, where = {
        "mnist": (mnist, small_mnist, "mnist"),
        "cifar10": (cifar10, small_cifar10, cifar10.FOLDER),
    }[name]
    files = small(monkeypatch)
    victim = module.FILES["train"][1]
    files[victim] = damage(files[victim])
    put(folder / where, files)
    expected = module.CHECKSUMS[victim].split(":")[1]
    with pytest.raises(RunError, match=f"{victim} must have.*{expected}.*Remove it and run again"):
        load_images(name)


@pytest.mark.parametrize(
    "name, file", [("mnist", "train-images-idx3-ubyte.gz"), ("cifar10", "data_batch_1.bin")]
)
def test_without_a_network_the_missing_file_is_named_with_both_ways_to_get_it(name, file, folder):
    with pytest.raises(RunError) as error:
        load_images(name)
    for part in (str(folder), file, "where there is a network, or copy", "SKEWFLOW_DATA"):
        assert part in str(error.value)
    assert not [path for path in folder.rglob("*") if path.is_file()]


def test_missing_files_are_fetched_once(folder, server, monkeypatch):
    served, url = server
    monkeypatch.setattr(mnist, "URL", url)
    monkeypatch.setattr(cifar10, "URL", f"{url}cifar-10-binary.tar.gz")
    for name, raw in small_mnist(monkeypatch).items():
        (served / name).write_bytes(raw)
    sent = archive(small_cifar10(monkeypatch))
    monkeypatch.setattr(cifar10, "ARCHIVE", f"sha256:{hashlib.sha256(sent).hexdigest()}")
    (served / "cifar-10-binary.tar.gz").write_bytes(sent)
    assert len(load_images("mnist").labels) == 2 and len(load_images("cifar10").labels) == 10
    for path in served.iterdir():
        path.unlink()
    assert len(load_images("mnist").labels) == 2 and len(load_images("cifar10", "test").labels) == 2
    left = sorted(path.name for path in (folder / cifar10.FOLDER).iterdir())
    assert left == sorted(cifar10.CHECKSUMS)


def test_what_the_network_sends_is_checked(folder, server, monkeypatch):
    served, url = server
    monkeypatch.setattr(mnist, "URL", url)
    monkeypatch.setattr(cifar10, "URL", f"{url}cifar-10-binary.tar.gz")
    small_mnist(monkeypatch)
    (served / "train-images-idx3-ubyte.gz").write_bytes(b"sorry")
    with pytest.raises(RunError, match=r"train-images-idx3-ubyte.gz.*cannot be fetched.*hash"):
        load_images("mnist")
    files = small_cifar10(monkeypatch)
    right = archive(files)
    monkeypatch.setattr(cifar10, "ARCHIVE", f"sha256:{hashlib.sha256(right).hexdigest()}")
    other = archive({**files, "unknown.bin": b"more"})  # the files that are read are right
    for sent in (other, right[:-9], b"sorry"):
        (served / "cifar-10-binary.tar.gz").write_bytes(sent)
        with pytest.raises(RunError, match=r"lacks data_batch_1.bin.*cannot be fetched.*hash"):
            load_images("cifar10")
        assert not list((folder / cifar10.FOLDER).iterdir())


def test_the_digits_are_parted_in_one_place_for_grey_and_colour():
    whole = load_images("digits")
    for split, num in (("train", 1500), ("test", 297)):
        part, (pixels, labels) = load_digits_part(split), load_colours("digits", split)
        assert len(part.labels) == num and torch.equal(part.labels, labels.long())
        assert torch.equal((part.pixels * 255).byte(), pixels[:, 1, ::4, ::4])
    parts = [load_digits_part(split).pixels for split in ("train", "test")]
    assert torch.equal(torch.cat(parts), whole.pixels)


@pytest.mark.bad_input
def test_sets_that_do_not_exist_are_refused():
    with pytest.raises(RunError, match="one of mnist, cifar10, digits: got 'cifar'"):
        load_images("cifar")
    with pytest.raises(RunError, match="'train' or 'test': got 'valid'"):
        load_images("mnist", "valid")
    with pytest.raises(RunError, match="one set"):
        load_images("digits", "test")
