"""A second decode of a text by a bare llama.cpp context, each token alone or beside a dummy row."""

from __future__ import annotations

from collections.abc import Sequence

import llama_cpp
import numpy as np
import numpy.typing as npt

from support.engine_rig import Rig


def row_classes(rounds: Sequence[tuple[int, int]]) -> list[int]:
    """For each emitted token: 1 where it came from a batch of one row, else 2."""
    return [min(rows, 2) for rows, emitted in rounds for _ in range(emitted)]


def redecode(
    rig: Rig, prompt: Sequence[int], text: Sequence[int], classes: Sequence[int]
) -> list[npt.NDArray[np.float32]]:
    """Logits [n_vocab] after each prefix of `text` that `classes` has a row count for; dummy rows are removed again."""
    params = rig.params
    ctx = llama_cpp.llama_init_from_model(rig.model.model, params)
    batch = llama_cpp.llama_batch_init(params.n_batch, 0, 1)
    assert ctx

    def decode(tokens: Sequence[int], pos: int, output: int) -> npt.NDArray[np.float32]:
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = token, pos + i, i >= output
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        assert llama_cpp.llama_decode(ctx, batch) == 0
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(ctx, output), (rig.model.n_vocab(),)).copy()

    logits = [decode(prompt, 0, len(prompt) - 1)]
    for i, n_rows in enumerate(classes[1:]):
        pos = len(prompt) + i
        logits.append(decode([text[i]] * n_rows, pos, 0))
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(ctx), 0, pos + 1, -1)
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(ctx)
    return logits
