"""Train the demo model, a byte-level language identifier, and write `model.onnx` and `tokenizer.json` beside this file.

    python calibration/demo/train.py            train on all of train.tsv, export, report held-out accuracy
    python calibration/demo/train.py --fold 0   leave every fifth sentence out, report accuracy on those, write nothing

Not a part of any build: the files it writes are committed. Made with Python 3.11, torch 2.13.0 (CPU), onnx 1.23.2 and
tokenizers 0.23.3; torch is not a dependency of the project, so run it where that is installed. One thread and fixed
seeds give the same file again on the same machine; another CPU rounds otherwise and ends at other weights.
"""

from __future__ import annotations

import argparse
import copy
import io
import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn

TEXTS = Path(__file__).resolve().parent
MODEL = TEXTS.parents[1] / "configs" / "demo"

WIDTH, HEADS, MLP_WIDTH, BLOCKS = 128, 8, 256, 2
REACH = 16
"""Distances between bytes beyond this are told apart no further."""

STEPS, BATCH, WARMUP = 3000, 64, 100
LEARNING_RATE, WEIGHT_DECAY, DROPOUT, SMOOTHING = 3e-3, 0.1, 0.2, 0.05
AVERAGE = 0.99
"""What is exported is the running average of the weights, with this share kept at each step."""
SHORTEST, LONGEST = 16, 96
"""Bytes of a training sample."""

OPSET = 17
Labelled = tuple[str, str]


class Attention(nn.Module):
    """Multi-head self-attention with a learned bias for each head and distance."""

    def __init__(self, centres: Tensor, slope: float) -> None:
        """Each head starts out looking `centres` bytes ahead, the more strictly the steeper `slope` is."""
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        distances = torch.arange(-REACH, REACH + 1)
        # Without this start n-grams take far longer to be found, and with plain positions they hardly are.
        self.bias = nn.Parameter(-(slope * (distances[:, None] - centres).abs()).clamp(max=8.0))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """`x` is float32 [batch, sequence, width], `mask` what is added to the scores, [batch, 1, 1, sequence]."""
        batch, length = x.shape[0], x.shape[1]
        query, key, value = (
            projection(x).reshape(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        positions = torch.arange(length)
        distances = (positions[None, :] - positions[:, None]).clamp(-REACH, REACH) + REACH
        scores = query @ key.transpose(2, 3) / math.sqrt(WIDTH // HEADS)
        scores = scores + F.embedding(distances, self.bias).permute(2, 0, 1) + mask
        weights = F.dropout(scores.softmax(-1), DROPOUT, self.training)
        joined: Tensor = self.out((weights @ value).transpose(1, 2).reshape(batch, length, WIDTH))
        return joined


class Block(nn.Module):
    """A transformer block, normalized before each half."""

    def __init__(self, centres: Tensor, slope: float) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(centres, slope)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, MLP_WIDTH), nn.GELU(), nn.Linear(MLP_WIDTH, WIDTH))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """`x` and `mask` as in :class:`Attention`."""
        x = x + F.dropout(self.attention(self.attention_norm(x), mask), DROPOUT, self.training)
        return x + F.dropout(self.mlp(self.mlp_norm(x)), DROPOUT, self.training)


class LanguageIdentifier(nn.Module):
    """Bytes to languages: embedding, transformer blocks, mean over the bytes that are there, linear."""

    def __init__(self, languages: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        nn.init.normal_(self.embedding.weight, std=0.1)
        centres = torch.arange(HEADS, dtype=torch.float32) - HEADS // 2
        # The first block sees neighbours one by one, the next ones stretches of a word or two.
        self.blocks = nn.ModuleList(
            Block(centres, 2.0) if depth == 0 else Block(2 * centres, 0.5) for depth in range(BLOCKS)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.classifier = nn.Linear(WIDTH, languages)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Logits, float32 [batch, languages], of int64 [batch, sequence] ids and mask (1: a byte, 0: padding)."""
        present = attention_mask.float()
        mask = (1.0 - present[:, None, None, :]) * torch.finfo(torch.float32).min
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x, mask)
        total = (self.norm(x) * present[:, :, None]).sum(1)
        logits: Tensor = self.classifier(total / present.sum(1, keepdim=True))
        return logits


class Sampler:
    """Endless training samples: sentences and splices of them, cut to any length, some bytes made noise.

    Splicing a few words from here and a few from there keeps the model from learning sentences by heart.
    """

    def __init__(self, sentences: Sequence[Labelled], languages: Sequence[str], seed: int) -> None:
        self._random = random.Random(seed)
        self._languages = languages
        self._by_language: defaultdict[str, list[str]] = defaultdict(list)
        for language, text in sentences:
            self._by_language[language].append(text)

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        """Ids and mask, int64 [batch, sequence], and classes, int64 [batch]."""
        length = self._random.randint(SHORTEST, LONGEST)
        classes = [self._random.randrange(len(self._languages)) for _ in range(BATCH)]
        samples = [self._sample(self._by_language[self._languages[index]], length) for index in classes]
        return (*padded(samples), torch.tensor(classes))

    def _sample(self, sentences: Sequence[str], length: int) -> bytes:
        pick = self._random
        if pick.random() < 0.5:
            parts: list[str] = []
            while sum(map(len, parts)) < length:
                words = pick.choice(sentences).split()
                count = pick.randint(1, 4)
                start = pick.randrange(max(1, len(words) - count + 1))
                parts.append(" ".join(words[start : start + count]))
            text = " ".join(parts)
        else:
            text = pick.choice(sentences)
            while len(text.encode()) < length and pick.random() < 0.3:
                text = f"{text} {pick.choice(sentences)}"
        case = pick.random()
        text = text.lower() if case < 0.1 else text.upper() if case < 0.13 else text
        data = text.encode()
        start = pick.randrange(max(1, len(data) - length + 1))
        whole = data[start : start + length].decode(errors="ignore").encode()  # no halves of characters
        return bytes(pick.randint(32, 126) if pick.random() < 0.05 else byte for byte in whole)


def padded(samples: Sequence[bytes]) -> tuple[Tensor, Tensor]:
    """Ids and mask, int64 [batch, sequence], of byte strings padded to the longest."""
    ids = [torch.frombuffer(bytearray(sample), dtype=torch.uint8).long() for sample in samples]
    pad = nn.utils.rnn.pad_sequence
    return pad(ids, batch_first=True), pad([torch.ones_like(row) for row in ids], batch_first=True)


def train(sentences: Sequence[Labelled], languages: Sequence[str], steps: int) -> LanguageIdentifier:
    """A model trained on these sentences, ready for use."""
    torch.manual_seed(0)
    sampler = Sampler(sentences, languages, seed=1)
    model = LanguageIdentifier(len(languages))
    average = copy.deepcopy(model).eval()
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, (0.9, 0.98), weight_decay=WEIGHT_DECAY)
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, step / WARMUP) * (1 + math.cos(math.pi * step / steps)) / 2
        ids, mask, classes = sampler.batch()
        loss = F.cross_entropy(model(ids, mask), classes, label_smoothing=SMOOTHING)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for kept, latest in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(latest, 1 - min(AVERAGE, step / (step + 9)))
        if step % 200 == 0:
            print(f"step {step:5d}  loss {loss.item():.3f}", flush=True)
    return average


@torch.no_grad()
def accuracy(model: LanguageIdentifier, sentences: Sequence[Labelled], languages: Sequence[str]) -> float:
    """The share of sentences whose language gets the largest logit."""
    right = 0
    for language, text in sentences:
        right += languages[int(model(*padded([text.encode()])).argmax())] == language
    return right / len(sentences)


def export(model: LanguageIdentifier, languages: Sequence[str]) -> onnx.ModelProto:
    """The model as ONNX with dynamic `batch` and `sequence`, free of everything that tells where it was made."""
    example = torch.ones((2, 8), dtype=torch.int64)
    buffer = io.BytesIO()
    axes: Mapping[int, str] = {0: "batch", 1: "sequence"}
    torch.onnx.export(
        model,
        (example, example),
        buffer,
        input_names=["input_ids", "attention_mask"],
        output_names=["logits"],
        dynamic_axes={"input_ids": axes, "attention_mask": axes, "logits": {0: "batch"}},
        opset_version=OPSET,
        dynamo=False,
    )
    exported = onnx.load_model_from_string(buffer.getvalue())
    exported.graph.name = "language_identifier"
    exported.doc_string = f"Languages, in the order of the logits: {' '.join(languages)}"
    del exported.metadata_props[:]
    for node in exported.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    onnx.checker.check_model(exported, full_check=True)
    return exported


def byte_tokenizer() -> Tokenizer:
    """A tokenizer whose token ids are the bytes of the UTF-8 text; 0, which no text contains, is left for padding."""
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    # ByteLevel writes a printable byte as its Latin-1 character, the others as the characters from U+0100 on, in order.
    others = [byte for byte in range(256) if byte not in printable]
    vocabulary = {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}
    assert sorted(vocabulary) == characters
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def read(name: str) -> list[Labelled]:
    """The lines `language<TAB>text` of a file of texts."""
    lines = (TEXTS / name).read_text("utf-8").splitlines()
    return [(language, text) for language, _, text in (line.partition("\t") for line in lines)]


def main() -> None:
    """Train, and export unless a fold was asked for."""
    parser = argparse.ArgumentParser(description="Train the demo model.")
    parser.add_argument("--fold", type=int, choices=range(5), help="cross-validate: leave out every fifth sentence")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    sentences = read("train.tsv")
    languages = sorted({language for language, _ in sentences})
    if options.fold is not None:
        left_out = sentences[options.fold :: 5]
        model = train([pair for n, pair in enumerate(sentences) if n % 5 != options.fold], languages, options.steps)
        print(f"fold {options.fold}: accuracy {accuracy(model, left_out, languages):.2%} of {len(left_out)}")
        return
    model = train(sentences, languages, options.steps)
    held_out = read("heldout.tsv")
    print(f"train: accuracy {accuracy(model, sentences, languages):.2%} of {len(sentences)}")
    print(f"held-out: accuracy {accuracy(model, held_out, languages):.2%} of {len(held_out)}")
    data = export(model, languages).SerializeToString(deterministic=True)
    (MODEL / "model.onnx").write_bytes(data)
    byte_tokenizer().save(str(MODEL / "tokenizer.json"))
    print(f"model.onnx: {len(data)} bytes, {sum(p.numel() for p in model.parameters())} parameters")


if __name__ == "__main__":
    main()
