"""The second device, from DFLASH_TEST_DEVICE (a ggml device name) or DFLASH_TEST_RPC (host:port of an RPC server)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from support.engine_rig import Rig
from support.ggml_devices import add_rpc_server, device_names

ALL_LAYERS = 1000


@pytest.fixture(scope="session", autouse=True)
def device() -> str:
    """ggml's name of the device; registered before any model is loaded."""
    endpoint = os.environ.get("DFLASH_TEST_RPC", "")
    name = os.environ.get("DFLASH_TEST_DEVICE", "")
    if endpoint:
        first = add_rpc_server(endpoint)
        name = name or first
    if name not in device_names() or name == "CPU":
        pytest.fail(
            f"these tests need a second device, DFLASH_TEST_DEVICE is {name!r}, there are {', '.join(device_names())}: "
            "run scripts/test-device"
        )
    return name


@pytest.fixture(scope="module", params=["draft-on-cpu", "draft-on-device"])
def rig(request: pytest.FixtureRequest, device: str, smollm_path: str, drafter_path: str) -> Iterator[Rig]:
    """The target wholly on the device; the drafter on the CPU and on the device."""
    draft_device = device if request.param == "draft-on-device" else ""
    made = Rig(smollm_path, drafter_path, n_gpu_layers=ALL_LAYERS, draft_device=draft_device)
    yield made
    made.close()
