"""Laws of the named transforms: each name gives a transform and the public Python that makes it."""

from __future__ import annotations

from typing import Any

import pytest

from packtrain._extras.named_transforms import named_transform
from packtrain.errors import UsageError
from packtrain.transforms import CenterCrop, RandomResizedCrop, Resize


class TestNamedTransforms:
    def test_names(self) -> None:
        crop, flip = named_transform("rrc160").transform
        assert isinstance(crop, RandomResizedCrop) and crop.size == (160, 160) and flip.p == 0.5
        resize, centre = named_transform("center224").transform
        assert isinstance(resize, Resize) and resize.size == 256
        assert isinstance(centre, CenterCrop) and centre.size == (224, 224)
        assert named_transform("crop32").transform[0].pad_if_needed
        assert named_transform("none").transform is None

    @pytest.mark.parametrize("name", ["rrc224", "center192", "crop32", "statistics:median"])
    def test_the_expression_makes_the_same_transform(self, name: str) -> None:
        found = named_transform(name)
        names: dict[str, Any] = {}
        exec(f"{found.imports}\nmade = {found.expression}", names)
        assert repr(names["made"]) == repr(found.transform)

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("rcc224", "did you mean 'rrc224'"),
            ("rrc", "rrc224, center224"),
            ("rrc0", "expected"),
            ("rrc-3", "expected"),
            ("", "expected"),
            ("no_such_module:train", "PYTHONPATH"),
            ("statistics:none", "PYTHONPATH"),
            ("a b:c", "expected module:attribute"),
            (":c", "expected module:attribute"),
            ("math:pi", "is not a transform"),
        ],
    )
    def test_other_names_are_refused(self, name: str, words: str) -> None:
        with pytest.raises(UsageError, match=words):
            named_transform(name)
