from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fcil.core.messages import decode, encode
from fcil.data.exemplar_memory import Memory, exemplars_per_class

rankings = st.dictionaries(st.integers(0, 9), st.lists(st.integers(0, 999), min_size=1, max_size=12), max_size=5)
histories = st.lists(rankings, min_size=1, max_size=4)


def as_tensors(ranking: dict[int, list[int]]) -> dict[int, torch.Tensor]:
    return {label: torch.tensor(samples) for label, samples in ranking.items()}


@given(histories, st.integers(0, 40))
def test_each_class_keeps_the_head_of_its_ranking_up_to_an_equal_share(
    history: list[dict[int, list[int]]], budget: int
) -> None:
    memory = Memory()
    newest: dict[int, list[int]] = {}
    for ranking in history:
        kept_before = dict(zip(memory.classes, memory.ranked, strict=True))
        memory = memory.with_classes(as_tensors(ranking), budget)
        newest |= ranking
        assert memory.classes == tuple(sorted(newest))
        share = budget // len(newest) if newest else 0
        assert exemplars_per_class(budget, len(memory.classes)) == share
        assert len(memory) == len(memory.indices) <= budget
        for label, kept in zip(memory.classes, memory.ranked, strict=True):
            assert kept.tolist() == newest[label][: len(kept)]
            offered = len(ranking[label]) if label in ranking else len(kept_before[label])
            assert len(kept) == min(share, offered)


@given(rankings.filter(bool))
def test_a_budget_of_nothing_keeps_the_classes_as_history(ranking: dict[int, list[int]]) -> None:
    memory = Memory().with_classes(as_tensors(ranking), 0)
    assert memory.classes == tuple(sorted(ranking))
    assert len(memory) == 0
    assert memory.indices.tolist() == []
    assert memory.indices.dtype == torch.int64


def test_adding_a_class_shrinks_the_others_by_truncation() -> None:
    memory = Memory().with_classes({4: torch.tensor([9, 3, 7, 1])}, 4)
    smaller = memory.with_classes({2: torch.tensor([5, 6, 8])}, 4)
    assert smaller.classes == (2, 4)
    assert [kept.tolist() for kept in smaller.ranked] == [[5, 6], [9, 3]]
    assert smaller.indices.tolist() == [5, 6, 9, 3]
    assert [kept.tolist() for kept in memory.ranked] == [[9, 3, 7, 1]]


def test_a_memory_can_be_sent() -> None:
    memory = Memory().with_classes({4: torch.tensor([9, 3]), 1: torch.tensor([2])}, 10)
    received = decode(encode(memory), Memory)
    assert received.classes == memory.classes
    assert [kept.tolist() for kept in received.ranked] == [[2], [9, 3]]
