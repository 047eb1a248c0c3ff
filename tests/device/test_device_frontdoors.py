"""What users call, with all layers on a second device: Llama, the runtime, the generate command."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from dflash_local.cli.main import app
from dflash_local.generation import generate
from dflash_local.llama import Llama
from dflash_local.runtime import load_runtime
from dflash_local.sampling import SamplingParams

QUESTION = "Why do cats purr?"


def test_llama_drafts_on_the_device(smollm_path: str) -> None:
    llm = Llama(smollm_path, draft="dflash", draft_rows=7, n_gpu_layers=-1, n_ctx=512, n_threads=1, verbose=False)
    reply = llm.create_chat_completion(messages=[{"role": "user", "content": QUESTION}], max_tokens=24, temperature=0.0)
    assert reply["choices"][0]["message"]["content"]
    assert llm.draft_stats["draft_status"] == "engaged"
    assert llm.draft_stats["draft_n_accepted"] > 0
    llm.close()


@pytest.mark.parametrize("n_gpu_layers", [-1, 15])
def test_the_runtime_takes_the_memory_that_it_names(smollm_path: str, n_gpu_layers: int) -> None:
    lines: list[str] = []
    with load_runtime(
        smollm_path, n_gpu_layers=n_gpu_layers, n_ctx=512, n_batch=128, n_threads=1, notify=lines.append
    ) as runtime:
        assert [line[:13] for line in lines] == ["drafting adds"]
        assert runtime.draft_memory is not None
        prompt = runtime.vocab.tokenize("word " * 200, add_special=False, parse_special=False)
        run = generate(runtime, prompt, SamplingParams(temperature=0.0), max_tokens=24, draft_rows=7)
        assert sum(len(chunk.tokens) for chunk in run) == 24
        assert run.result.draft_status == "engaged"
        taken = runtime.engine.draft_memory()["total"]
        assert runtime.draft_memory["total"] == pytest.approx(taken, rel=0.1)


def test_generate_proves_its_text(smollm_path: str) -> None:
    options = "--json --prove --max-tokens 24 --ctx 512 --threads 1 --draft-rows 7 --seed 5 --temperature 0.8"
    done = CliRunner().invoke(app, ["generate", "-m", smollm_path, "-p", QUESTION, *options.split()])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["draft_status"] == "engaged"
    assert found["proof"]["exact"] == found["proof"]["tokens"] == found["completion_tokens"]
