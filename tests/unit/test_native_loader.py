"""Another llama-cpp-python than ours is refused in words."""

import pytest

from dflash_local import Unsupported
from dflash_local._native_loader import LLAMA_CPP_VERSION, check_version


def test_our_version_passes() -> None:
    check_version(LLAMA_CPP_VERSION)


def test_another_version_says_what_to_install() -> None:
    with pytest.raises(Unsupported, match=r"installed is 0\.3\.37; reinstall it: pip install .*==0\.3\.36"):
        check_version("0.3.37")
