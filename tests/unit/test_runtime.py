"""Loading, falling back and closing on the real model."""

from pathlib import Path
from typing import Any

import pytest

from dflash_local import IncompatibleDrafter, ModelLoadError, OutOfMemory, runtime
from dflash_local.generation import generate
from dflash_local.pairs.registry import MODELS_DIR, resolve_model
from dflash_local.runtime import Runtime, load_model, load_runtime
from dflash_local.sampling import SamplingParams

MODEL = "smollm2-135m-instruct"
FAST: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "flash_attn": False}
GREEDY = SamplingParams(temperature=0.0)


def text_of(loaded: Runtime) -> str:
    prompt = loaded.vocab.tokenize("1 2 3 4 5 6 7 8", add_special=True, parse_special=True)
    run = generate(loaded, prompt, GREEDY, max_tokens=4)
    return "".join(chunk.text for chunk in run)


def test_pair_loads_generates_and_closes_twice() -> None:
    told: list[str] = []
    with load_runtime(MODEL, notify=told.append, **FAST) as loaded:
        assert (loaded.draft_status, loaded.n_ctx) == ("engaged", 256)
        assert loaded.draft_memory is not None
        assert [line.split(" MiB")[0].startswith("drafting adds") for line in told] == [True]
        assert loaded.engine.max_leaves == runtime.MAX_LEAVES
        assert text_of(loaded).strip().startswith("9")
    loaded.close()
    with pytest.raises(ValueError, match="closed"):
        loaded.engine.begin([1])


def test_off_adds_no_memory_and_tells_nothing() -> None:
    told: list[str] = []
    with load_runtime(MODEL, "off", notify=told.append, **FAST) as loaded:
        assert (loaded.draft_status, loaded.draft_memory, loaded.engine.tap_mode, told) == ("off", None, "", [])
        assert loaded.engine.max_leaves == 1


@pytest.mark.parametrize("fault", [OutOfMemory("no memory for K/V"), IncompatibleDrafter("no usable taps")])
def test_found_drafter_that_fails_while_loading_ends_in_plain(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise fault

    monkeypatch.setattr(runtime.native, "Drafter", fail)
    told: list[str] = []
    with load_runtime(MODEL, notify=told.append, **FAST) as loaded:
        assert loaded.draft_status == f"declined: {fault}"
        assert loaded.drafter_name is None
        assert loaded.draft_memory is None
        assert told[-1] == f"warning: decoding without a drafter: {fault}"
        assert loaded.engine.max_leaves == 1
        assert text_of(loaded).strip().startswith("9")


def test_named_drafter_that_fails_while_loading_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OutOfMemory("no memory for K/V")

    monkeypatch.setattr(runtime.native, "Drafter", fail)
    with pytest.raises(OutOfMemory, match="no memory"):
        load_runtime(MODEL, MODELS_DIR / "smollm2-135m-dflash.gguf", **FAST)


@pytest.mark.parametrize(("n_gpu_layers", "device"), [(-1, "GPU7"), (0, ""), (1, "GPU7"), (99, "GPU7")])
def test_memory_is_estimated_for_where_layers_go(
    n_gpu_layers: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, bool]] = []

    def refuse(*_: object, device: str, layers_on_device: bool, **__: object) -> None:
        asked.append((device, layers_on_device))
        raise OutOfMemory("too large")

    monkeypatch.setattr(runtime, "device_name", lambda: "GPU7")
    monkeypatch.setattr(runtime.native, "estimate_memory", refuse)
    with pytest.raises(OutOfMemory, match="too large"):
        load_runtime(MODEL, MODELS_DIR / "smollm2-135m-dflash.gguf", n_gpu_layers=n_gpu_layers, **FAST)
    assert asked == [(device, device != "")]


def test_a_build_without_devices_offloads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp says that a build with RPC can offload, also where no server was added."""
    monkeypatch.setattr(runtime.llama_cpp, "llama_supports_gpu_offload", lambda: True)
    monkeypatch.setattr(runtime.native, "gpu_device", lambda: "")
    assert not runtime.offloads(-1)
    monkeypatch.setattr(runtime.native, "gpu_device", lambda: "GPU7")
    assert runtime.offloads(-1)
    assert not runtime.offloads(0)


def test_threads_are_alike_for_one_row_and_many() -> None:
    params = runtime.make_context_params(runtime.tune.Tuning(3, 0, ""), n_ctx=64)
    assert params.n_threads == params.n_threads_batch == 3
    assert (params.n_seq_max, params.kv_unified) == (1, True)


def test_context_beyond_the_trained_one_is_told() -> None:
    told: list[str] = []
    load_runtime(MODEL, "off", n_ctx=8448, n_threads=1, flash_attn=False, notify=told.append).close()
    assert told == ["warning: a context of 8448 tokens is more than the 8192 this model was trained for"]


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="the system does not say what memory is left")
def test_context_beyond_memory_is_refused_with_numbers() -> None:
    with pytest.raises(
        OutOfMemory, match=r"a context of 2000000000 tokens takes 429\d\d\.\d GiB of memory, .* are there"
    ):
        load_runtime(MODEL, "off", n_ctx=2_000_000_000, n_threads=1, flash_attn=False)


@pytest.mark.parametrize("options", [{"n_ctx": -1}, {"n_ctx": 2**32}, {"n_batch": 0}, {"n_threads": 0}])
def test_bad_numbers_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"n_ctx is|n_threads is"):
        load_runtime(MODEL, "off", **options)  # type: ignore[arg-type]


def test_truncated_target_is_refused_with_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(resolve_model(MODEL).read_bytes()[:3_000_000])
    with pytest.raises(ModelLoadError, match=r"cut\.gguf"):
        load_runtime(path, "off", **FAST)
    with pytest.raises(ModelLoadError, match=r"llama\.cpp cannot load this model: "):
        load_model(path)


def test_special_texts_and_pieces() -> None:
    with load_runtime(MODEL, "off", **FAST) as loaded:
        vocab = loaded.vocab
        assert "<|im_end|>" in vocab.special_texts()
        (end,) = vocab.tokenize("<|im_end|>", add_special=False, parse_special=True)
        assert vocab.is_eog(end)
        assert (vocab.piece(end), vocab.piece(end, special=True)) == (b"", b"<|im_end|>")
        text = "na\u00efve \u65e5\u672c \U0001f642"
        ids = vocab.tokenize(text, add_special=False, parse_special=False)
        assert b"".join(map(vocab.piece, ids)).decode() == text
        with pytest.raises(ValueError, match="not valid Unicode at character 1"):
            vocab.tokenize("a\udcff", add_special=False, parse_special=False)
