"""`inputs.onnx` gives what the reference loop gives to the graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from pipeline.contracts.language import Edges, Lengths
from pipeline.graph.language.host_table import rows_of
from pipeline.graph.language.inputs_model import inputs_model
from pipeline.graph.language.loop import Walk
from pipeline.graph.language.names import EMBEDDED, IDS, TABLE
from tests.support.spoken_graphs import HIDDEN, TOTAL, WINDOW, causal, spoken_graph, tiny_facts, write_rows


def run(edges: Edges, positions: list[int], seen: list[int]) -> dict[str, np.ndarray]:
    session = ort.InferenceSession(inputs_model(tiny_facts(), TOTAL, edges), providers=["CPUExecutionProvider"])
    given = {"position_ids": np.array([positions], np.int32), "attention_seen": np.array([seen], np.int32)}
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, given), strict=True))


@pytest.mark.parametrize("integers", [True, False])
@pytest.mark.parametrize("sequence", [1, WINDOW])
def test_full_windows_are_those_of_the_loop(sequence: int, integers: bool) -> None:
    edges = spoken_graph(sequence).edges if integers else {}
    lengths = Lengths(sequence, TOTAL - sequence)
    walk = Walk(tiny_facts(), lengths.past, edges)
    walk.position = walk.cache.known = 8

    wanted = walk.feed(lengths, [5] * sequence)
    made = run(edges, [*range(8, 8 + sequence)], [0] * (TOTAL - sequence - 8) + [1] * (8 + sequence))

    assert sorted(made) == ["attention_mask", "position_ids_cos", "position_ids_sin"]
    for name, array in made.items():
        assert array.dtype == wanted[name].dtype
        np.testing.assert_array_equal(array, wanted[name])


def test_padding_before_a_prompt_is_seen_by_none() -> None:
    seen = [0] * (TOTAL - 3) + [1] * 3

    mask = run({}, [0] * (WINDOW - 3) + [0, 1, 2], seen)["attention_mask"]

    assert mask.shape == (1, 1, WINDOW, TOTAL)
    wanted = causal(WINDOW, 0) & (np.array(seen) > 0)[None, :]
    np.testing.assert_array_equal(mask[0, 0] == 0, wanted)
    assert set(np.unique(mask)) == {-50, 0}


def test_rows_of_a_table_on_the_host_are_those_that_the_loop_looks_up(tmp_path: Path) -> None:
    graph = spoken_graph(WINDOW, on_host=True)
    (tmp_path / "inputs.onnx").write_bytes(inputs_model(tiny_facts(), TOTAL, graph.edges))
    write_rows(tmp_path / TABLE)
    tokens = np.array([[5, 0, 287, 5, 263, 1, 2, 3]], np.int32)

    session = ort.InferenceSession(tmp_path / "inputs.onnx", providers=["CPUExecutionProvider"])
    seen, places = np.ones((1, TOTAL), np.int32), np.arange(WINDOW, dtype=np.int32)[None]
    (made,) = session.run([EMBEDDED], {"position_ids": places, "attention_seen": seen, IDS: tokens})
    looked_up = rows_of(tmp_path, tiny_facts())({IDS: tokens, "attention_mask": seen})

    assert sorted(looked_up) == ["attention_mask", EMBEDDED]
    assert made.dtype == looked_up[EMBEDDED].dtype == np.uint16
    np.testing.assert_array_equal(made, looked_up[EMBEDDED])
    np.testing.assert_array_equal(made[0, 1], np.arange(HIDDEN))  # token 0
