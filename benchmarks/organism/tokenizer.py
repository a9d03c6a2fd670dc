"""A small Qwen2 tokenizer: bytes, single digits, and the words of reasoning-gym's questions as one token each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EOS, PAD = "<|endoftext|>", "<|pad|>"
MERGES = 160


def build_tokenizer(texts: Iterable[str], max_length: int) -> PreTrainedTokenizerBase:
    """Return a byte-level BPE tokenizer with at most `MERGES` merges learned from `texts`.

    It has Qwen2's tokenizer class, because `AutoTokenizer` gives every `model_type: qwen2` that class and its splitting
    rule whatever the saved files say: a tokenizer of another class comes back changed.
    """
    from tokenizers import Tokenizer, models, trainers
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Tokenizer

    blank = Qwen2Tokenizer()
    learner = Tokenizer(models.BPE())
    learner.normalizer = blank.backend_tokenizer.normalizer
    learner.pre_tokenizer = blank.backend_tokenizer.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=256 + MERGES, initial_alphabet=sorted(ByteLevel.alphabet()), show_progress=False, special_tokens=[]
    )
    learner.train_from_iterator(texts, trainer)
    learned = json.loads(learner.to_str())["model"]
    vocabulary = dict(learned["vocab"])
    for special in (EOS, PAD):
        vocabulary[special] = len(vocabulary)
    return qwen2_tokenizer(vocabulary, learned["merges"], max_length)


def qwen2_tokenizer(vocabulary: Mapping[str, int], merges: Iterable[Any], max_length: int) -> PreTrainedTokenizerBase:
    """Return a Qwen2 tokenizer with `EOS` and `PAD` from the vocabulary."""
    from transformers import Qwen2Tokenizer

    return Qwen2Tokenizer(
        vocab=dict(vocabulary),
        merges=[tuple(merge) for merge in merges],
        unk_token=None,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=max_length,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
