"""What is measured is what it says: sizes and the gradient sets of real models."""

import itertools

import pytest

from dlrun.bench.cases import array_case, bytes_as_text, bytes_from_text, cases, model_case, sizes_from_text
from dlrun.errors import DlrunError


def test_resnet50_has_its_161_tensors_and_25557032_parameters() -> None:
    case = model_case("resnet50")
    assert (len(case.counts), case.elements) == (161, 25_557_032)


def test_gpt2_small_has_its_148_tensors_and_124439808_parameters() -> None:
    case = model_case("gpt2")
    assert (len(case.counts), case.elements) == (148, 124_439_808)


def test_the_small_network_is_the_one_of_the_digits_example() -> None:
    torch = pytest.importorskip("torch")
    conv, linear = torch.nn.Conv2d, torch.nn.Linear
    layers = [conv(1, 16, 3), conv(16, 32, 3), linear(32 * 4 * 4, 64), linear(64, 10)]
    expected = [p.numel() for layer in layers for p in layer.parameters()]
    assert list(reversed(model_case("cnn").counts)) == expected


def test_a_gradient_set_starts_with_the_last_layer() -> None:
    assert model_case("resnet50").counts[:2] == (1000, 2048 * 1000)


def test_a_range_holds_every_power_of_two_between_its_ends() -> None:
    sizes = sizes_from_text("4:256MB")
    assert sizes[0] == 4
    assert sizes[-1] == 256 * 2**20
    assert len(sizes) == 27
    assert all(b == 2 * a for a, b in itertools.pairwise(sizes))


@pytest.mark.parametrize(("text", "count"), [("4", 4), ("64KB", 65536), ("1.5mb", 3 * 2**19), ("1 GB", 2**30)])
def test_sizes_are_read_as_people_write_them(text: str, count: int) -> None:
    assert bytes_from_text(text) == count


@pytest.mark.parametrize("text", ["", "KB", "4XB", "-4", "8:4", "0:4"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(DlrunError, match="not a"):
        sizes_from_text(text)


def test_a_size_that_splits_an_element_is_refused_with_the_width() -> None:
    with pytest.raises(DlrunError, match="10 bytes is no whole number of float32"):
        array_case(10, "float32")


@pytest.mark.parametrize("size", [4, 1024, 65536, 3 * 2**19, 2**28])
def test_a_size_reads_back_from_its_name(size: int) -> None:
    assert bytes_from_text(bytes_as_text(size)) == size


def test_sizes_come_before_models_and_unknown_models_are_refused() -> None:
    assert [c.name for c in cases([4, 4096], ["cnn"], "float32")] == ["4 B", "4 KB", "cnn"]
    with pytest.raises(DlrunError, match="no model is called 'vgg'"):
        model_case("vgg")
