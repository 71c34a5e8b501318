"""Networks side by side: each trains as it would alone; images are flipped, shifted, normalised."""

import pytest
import torch

from skewflow_lab.data.colour import PADDING, ColourSet, default_colours, load_colours
from skewflow_lab.models.lanes import Lane, SideBySide
from skewflow_lab.models.methods import largest_error, make_optimizers
from skewflow_lab.models.plainnet import PlainNet

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def images():
    pixels, labels = load_colours("digits", "train")
    return ColourSet.of(pixels[:96], labels[:96], None, DEVICE)


def lane(method):
    torch.manual_seed(0)
    model = PlainNet(depth=5, width=4).to(DEVICE)
    options = {"lr": 0.1, "orthogonal_lr": 0.1, "check_every": 1}
    return Lane(model, make_optimizers(model, method, **options))


def test_lanes_train_as_each_would_alone(images):
    methods = ("vanilla", "exact", "s=2", "s=r")
    together = SideBySide([lane(method) for method in methods])
    alone = [SideBySide([lane(method)]) for method in methods]
    for epoch in range(3):
        if epoch == 2:
            for side in (together, *alone):
                for its in side.lanes:
                    its.set_lr(0.1)
        together.train_epoch(images.shuffled(32, 0, epoch))
        for side in alone:
            side.train_epoch(images.shuffled(32, 0, epoch))
    for ours, side in zip(together.lanes, alone, strict=True):
        for p, q in zip(ours.model.parameters(), side.lanes[0].model.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)
        seen = ours.totals()
        assert 0 <= seen["accuracy"] <= 1 and seen["loss"] == pytest.approx(
            side.lanes[0].totals()["loss"], rel=1e-2
        )
    assert all(largest_error(its.model) < 1e-5 for its in together.lanes[1:])


def test_one_of_the_lanes_can_train_by_itself(images):
    side = SideBySide([lane("s=2"), lane("s=2")])
    before = [p.detach().clone() for p in side.lanes[1].model.parameters()]
    side.train_epoch(images.shuffled(32, 0, 0), only=0)
    for p, q in zip(side.lanes[1].model.parameters(), before, strict=True):
        assert torch.equal(p, q)
    side.train_epoch(images.shuffled(32, 0, 0), only=1)
    for p, q in zip(*(its.model.parameters() for its in side.lanes), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)


def test_an_epoch_holds_each_image_once_flipped_and_shifted(images):
    batches = list(images.shuffled(32, 0, 0))
    assert [len(y) for _, y in batches] == [32, 32, 32]
    found = torch.cat([x for x, _ in batches]).cpu()
    labels = torch.cat([y for _, y in batches])
    assert torch.equal(labels.sort().values, images.labels.sort().values)
    padded = images._normalised(images.pixels).cpu()
    variants = {}
    for n in range(len(images)):
        for i in range(2 * PADDING + 1):
            for j in range(2 * PADDING + 1):
                shifted = padded[n, :, i : i + 32, j : j + 32]
                for image in (shifted, shifted.flip(-1)):
                    variants.setdefault(image.numpy().tobytes(), set()).add(n)
    sources = [variants[image.numpy().tobytes()] for image in found]
    assert len(set().union(*sources)) >= 90  # digits may look alike when shifted
    again = torch.cat([x for x, _ in images.shuffled(32, 0, 0)]).cpu()
    other = torch.cat([x for x, _ in images.shuffled(32, 0, 1)]).cpu()
    assert torch.equal(found, again) and not torch.equal(found, other)


def test_plain_images_have_mean_zero_and_deviation_one(images):
    x = torch.cat([x for x, _ in images.plain(40)])
    assert x.shape == (96, 3, 32, 32)
    assert x.mean().abs() < 1e-3 and (x.std() - 1).abs() < 1e-2


def test_a_folder_without_all_files_is_not_taken_for_cifar10(tmp_path, monkeypatch):
    monkeypatch.setenv("SKEWFLOW_DATA", str(tmp_path))
    (tmp_path / "cifar-10-batches-bin").mkdir()
    assert default_colours() == "digits"
