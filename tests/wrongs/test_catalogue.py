"""Every wrong fits the source it is planted in; `make wrongs` finds out if tests notice it."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT
from tests.wrongs.catalogue import WRONGS, Wrong


@pytest.mark.parametrize("wrong", WRONGS, ids=lambda wrong: wrong.name)
def test_a_wrong_fits_its_file_once_and_leaves_python(wrong: Wrong) -> None:
    text = (ROOT / wrong.file).read_text(encoding="utf-8")
    assert text.count(wrong.old) == 1
    assert wrong.new != wrong.old
    assert (ROOT / wrong.noticed_by).is_file()
    compile(text.replace(wrong.old, wrong.new), wrong.file, "exec")


def test_names_of_wrongs_are_unique() -> None:
    assert len({wrong.name for wrong in WRONGS}) == len(WRONGS)
