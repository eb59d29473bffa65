"""A few networks of the zoo all the way: surgery, training, measures, attacks, folding, saving, loading."""

from importlib.util import find_spec

import pytest

from scripts.zoo import STAGES, walk
from scripts.zoo_networks import ENTRIES, Entry

NAMES = ("ConvNext", "Dinov2", "test_vit", "test_efficientnet")


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry.name in NAMES], ids=lambda entry: entry.name)
def test_networks_of_others_go_all_the_way(entry: Entry) -> None:
    needed = [name for name in (entry.library, "torchvision") if name == entry.library or entry.library == "timm"]
    if not all(map(find_spec, needed)):
        pytest.skip(f"{entry.library} is no dependency of development")
    row = walk(entry)
    assert row.passed == len(STAGES), row.reason
    assert row.folded < 1e-4 and row.replaced
