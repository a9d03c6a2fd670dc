"""A small Qwen2 tokenizer: bytes, single digits, and the words of reasoning-gym's questions as one token each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EOS, PAD = "<|endoftext|>", "<|pad|>"
MERGES = 160


def build_tokenizer(texts: Iterable[str], max_length: int) -> PreTrainedTokenizerBase:
    """Byte-level BPE with at most `MERGES` merges learned from `texts`.

    It is Qwen2's own tokenizer class, because `AutoTokenizer` gives every `model_type: qwen2` that class and
    its splitting rule whatever the saved files say: a tokenizer of another class comes back changed.
    """
    from tokenizers import Tokenizer, models, trainers
    from transformers import Qwen2Tokenizer

    blank = Qwen2Tokenizer()
    learner = Tokenizer(models.BPE())
    learner.normalizer = blank.backend_tokenizer.normalizer
    learner.pre_tokenizer = blank.backend_tokenizer.pre_tokenizer
    from tokenizers.pre_tokenizers import ByteLevel

    trainer = trainers.BpeTrainer(
        vocab_size=256 + MERGES, initial_alphabet=sorted(ByteLevel.alphabet()), show_progress=False, special_tokens=[]
    )
    learner.train_from_iterator(texts, trainer)
    import json

    learned = json.loads(learner.to_str())["model"]
    vocab = dict(learned["vocab"])
    for special in (EOS, PAD):
        vocab[special] = len(vocab)
    tokenizer = Qwen2Tokenizer(
        vocab=vocab,
        merges=[tuple(m) for m in learned["merges"]],
        unk_token=None,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=max_length,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    return tokenizer
