"""Holds what was read of a GGUF file against llama.cpp, which reads the same bytes: the rung `reading`.

Three things are compared: the tokens of texts in many scripts, the text that the chat template makes of conversations,
and the probabilities of the next token in a chat and in a text of several scripts, at places of a prompt and in a few
steps after it. Of the probabilities, the logarithms of the likeliest are held against each other, less their mean: that
is what logits are, as all of them may be shifted by any number.

llama.cpp rounds the inputs of products to the weights' form. How much that can explain is computed, not guessed: the
graph that was read runs once more with its products rounded in the same way
(:mod:`pipeline.graph.language.ggml_rounding`). The error of one rounded run against another is as large as of either
against the exact one, but not the same: nearly equal numbers are rounded apart, and that spreads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnxruntime import InferenceSession

from pipeline.contracts.language import LanguageFacts, LanguageFigures, Lengths
from pipeline.contracts.limits import READING_DB
from pipeline.contracts.reading import Facts, LanguageReading, ReadingResult, Shown
from pipeline.errors import CalibrationError
from pipeline.graph.accuracy.figures.accuracy import Accuracy, rounded
from pipeline.graph.cpu import load_session, run, unoptimized_session
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.language.ggml_rounding import rounded_as_ggml
from pipeline.graph.language.host_table import rows_of
from pipeline.graph.language.loop import Walk
from pipeline.inputs.gguf import llama_cpp
from pipeline.inputs.samples.chat import Message, Voice

LOGITS = "logits"
_REST = 1e-7
"""Less than this is not left of a probability of 1 in float32."""
_PROMPT, _PLACES, _STEPS = 40, 5, 4
"""The most tokens of a prompt, the number of places in it that are looked at, and of steps of decoding at its end."""

TEXTS = (
    "The quick brown fox jumps over 13 lazy dogs.", "  two  spaces,\ttabs\tand\n\n\nlines \r\n ", "", " ", "\n", "a",
    "I'm sure they'LL say we've won; it's John's, isn't it?", "3.14159 1,234,567 0x1F 1e-10 2024-05-06 12345678901",
    "x = [i**2 for i in range(10)]  # squares\nif x != y:\n    return {'a': None}", "<div class=\"a\">&amp;</div>",
    "https://example.org/a_b?c=d&e=%20#f", "Größe, Straße, naïve, façade, Łódź, İstanbul, ĲSSEL, ﬁne",
    "Ça coûte 12 €, s’il vous plaît — « merci »…", "¿Qué tal? ¡Mañana señor!", "Tiếng Việt có nhiều dấu thanh.",
    "Привет, мир! Съешь ещё этих мягких французских булок.", "Γειά σου Κόσμε, ἀρχή", "שלום עולם, מה שלומך?",
    "مرحبا بالعالم، كيف حالك؟ ١٢٣", "सभी मनुष्यों को गौरव और अधिकारों के मामले में", "বাংলা ভাষা সুন্দর।", "தமிழ் மொழி",
    "తెలుగు భాష", "ภาษาไทยไม่มีช่องว่าง", "ខ្មែរ និងឡាວ ລາວ", "မြန်မာဘာသာ", "ქართული ენა", "Հայերեն լեզու", "አማርኛ ቋንቋ",
    "你好，世界！今天天气很好。", "日本語のテキスト、カタカナとひらがな。", "한국어 문장을 나눕니다.",
    "𠮷野家で食べる 𝒳 𝔘𝔫𝔦",
    "🙂👩‍👩‍👧‍👦🏳️‍🌈 1️⃣ ☃️", "é vs é; a\u0300\u0301", "\u200bzero\u200dwidth\ufeff",
    "tab\u00a0nbsp\u3000wide\u2009thin\u2028line",
    "\u00ad\u0007\u0000\u001f\u007f", "ＡＢＣ１２３", "½ ² ³ Ⅷ ① ٣ ৪", "∑∫√∞ ≠ ≤ α²+β²",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "ALL CAPS AND camelCase and snake_case_name", "don't 'quote' \"this\" `or` that", "!!!???...---===***",
    "\\n \\t \\x00",
    "word " * 12, "<s> </s> <unk> <pad> [INST] <|x|> <|im_start|>user\nhi<|im_end|>", "end of text  ",
)  # fmt: skip
"""Texts whose tokens are compared: scripts, numbers, spaces, marks, emoji, control characters, code."""
CONVERSATIONS: tuple[tuple[Message, ...], ...] = (
    ({"role": "user", "content": "Name the capital of France, and a river there."},),
    ({"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "  Größe in «cm»?\n"}),
    (
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi, what can I do?"},
        {"role": "user", "content": "Count to three."},
    ),
)
"""Conversations whose text is compared; the tokens of the first are a prompt."""


def read_again(file: Path, ingested: Path, language: LanguageFacts) -> Facts:
    """The rung of a language model whose source is `file`; `ingested` is the output of ingest.

    Raises:
        CalibrationError: the model that was read cannot compute the prompts.
    """
    if file.suffix.lower() != ".gguf":
        return _not_proven("for safetensors no second reader runs in a build")
    version = llama_cpp.version()
    if version is None:
        return _not_proven(f"the package {llama_cpp.PACKAGE} is not installed, which the extra llamacpp brings")
    voice = Voice(ingested, language)
    prompts = [prompt[:_PROMPT] for prompt in _prompts(voice, language)]
    after = [_places(len(each)) for each in prompts]
    told = llama_cpp.ask(file, llama_cpp.Questions(TEXTS, CONVERSATIONS, prompts, after))
    if isinstance(told, str):
        return _not_proven(f"llama.cpp does not run the file: {told}")
    found, figures, own_db, rounded_db = _logits(told, prompts, ingested, language)
    chats, template = _rendered(told, voice)
    known = LanguageReading(
        version=version,
        texts=len(TEXTS),
        chats=chats,
        figures=figures,
        own_db=rounded(own_db, ".2f"),
        rounded_db=rounded(rounded_db, ".2f"),
        ids=_ids(told, voice, language),
        template=template,
    )
    db, least = found.sqnr_db, known.least_db(READING_DB)
    differs = [each for each in (known.ids, known.template) if each]
    if db is None or db < least:
        worst, of = found.worst
        explained = "are due" if own_db is None else "are left by what it rounds"
        differs.append(
            f"the logits are {_shown(db)} from llama.cpp's, {_shown(of)} {worst}; {least:.1f} dB {explained}"
        )
    shown: Shown = "differs" if differs else "exact" if (db or 0) >= READING_DB else "own rounding"
    why = "; ".join(differs) or None
    reading = ReadingResult(shown=shown, samples=len(told.steps), by="llama.cpp", why=why, language=known)
    return Facts(reading=reading, figures={LOGITS: found.figures()})


def _not_proven(why: str) -> Facts:
    return Facts(reading=ReadingResult(shown="not proven", why=why))


def _places(length: int) -> list[int]:
    """Numbers of tokens of a prompt: some, and the last few, one by one."""
    spread = np.linspace(1, length, _PLACES).astype(int).tolist()
    return sorted({*spread, *range(max(1, length - _STEPS), length + 1)})


def _prompts(voice: Voice, language: LanguageFacts) -> Iterator[list[int]]:
    """The tokens of a chat, and of some of the texts one behind the other."""
    chat = next(_texts(voice, CONVERSATIONS[0]), TEXTS[0])
    for text in (chat, " ".join(TEXTS[15:34:2])):
        tokens = voice.tokenizer.encode(text, add_special_tokens=False).ids
        begin = [language.bos] if language.bos is not None and tokens[:1] != [language.bos] else []
        if all(0 <= token < language.vocabulary for token in tokens):
            yield [*begin, *tokens]


def _ids(told: llama_cpp.Told, voice: Voice, language: LanguageFacts) -> str | None:
    """The first text that has other tokens in llama.cpp."""
    for text, theirs in zip(TEXTS, told.ids, strict=True):
        ours = voice.tokenizer.encode(text, add_special_tokens=False).ids
        if ours != list(theirs):
            at = next((at for at, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
            at = min(len(ours), len(theirs)) if at is None else at
            return (
                f"the text {text[:40]!r} has other tokens from number {at} on: {ours[at : at + 4]} in tokenizer.json,"
                f" {[*theirs[at : at + 4]]} in llama.cpp"
            )
    begin = [] if language.bos is None else [language.bos]
    if [*told.begun][: len(begin) + len(told.ids[0])] != [*begin, *told.ids[0]]:
        return f"a text begins with {begin or 'no token of its own'}, in llama.cpp it is {[*told.begun][:4]}"
    return None


def _rendered(told: llama_cpp.Told, voice: Voice) -> tuple[int, str | None]:
    """The number of conversations that both render, and the first that becomes another text in llama.cpp.

    llama.cpp itself writes some messages otherwise for a template that refuses them.
    """
    alike = 0
    for messages, theirs in zip(CONVERSATIONS, told.rendered, strict=True):
        texts = [*_texts(voice, messages)]
        if not texts and theirs is not None and voice.template is not None and messages == CONVERSATIONS[0]:
            return alike, f"the chat template refuses a question, of which llama.cpp makes {theirs[:40]!r}"
        if not texts or theirs is None:
            continue
        # llama.cpp leaves out what it puts before every text itself.
        if not any(text.removeprefix(voice.begin) == theirs.removeprefix(voice.begin) for text in texts):
            at = next((at for at, (a, b) in enumerate(zip(texts[0], theirs, strict=False)) if a != b), -1)
            at = min(len(texts[0]), len(theirs)) if at < 0 else at
            where = slice(max(0, at - 20), at + 20)
            return alike, f"the chat template makes {texts[0][where]!r} where llama.cpp has {theirs[where]!r}"
        alike += 1
    return alike, None


def _texts(voice: Voice, messages: Sequence[Message]) -> Iterator[str]:
    """The text of a conversation on the day that samples have, and today; none if the template refuses it."""
    if voice.template is None:
        return
    for day in (voice.day, datetime.now(UTC)):
        try:
            yield voice.on(day).render(messages, answer=True)
        except CalibrationError:
            return


def _logits(
    told: llama_cpp.Told, prompts: Sequence[Sequence[int]], ingested: Path, language: LanguageFacts
) -> tuple[Accuracy, LanguageFigures, float | None, float | None]:
    """The logits of the model that was read against llama.cpp's.

    Also returns how far ggml's rounding takes them from themselves, and those that are rounded so from llama.cpp's, in
    dB; None where it rounds nothing.
    """
    as_ggml = rounded_as_ggml(load_graph(ingested / MODEL), ingested)
    exact = _of_steps(load_session(ingested / MODEL), told.steps, prompts, ingested, language)
    found, own, alike_rounded = Accuracy(), Accuracy(), Accuracy()
    kl, alike = 0.0, 0
    for step, ours in zip(told.steps, exact, strict=True):
        found.add(_centred(step.logs), _centred(ours.logs), f"after {step.read} tokens of prompt {step.prompt + 1}")
        kl += _divergence(step.logs, ours.logs)
        alike += ours.likeliest == step.tokens[0]
    count = len(told.steps)
    figures = LanguageFigures(count, rounded(kl / count, ".3g"), rounded(alike / count, ".4f"), None, None)
    if as_ggml is None:
        return found, figures, None, None
    again = _of_steps(unoptimized_session(as_ggml, ingested), told.steps, prompts, ingested, language)
    for step, ours, same in zip(told.steps, exact, again, strict=True):
        own.add(_centred(ours.logs), _centred(same.logs))
        alike_rounded.add(_centred(step.logs), _centred(same.logs))
    return found, figures, own.sqnr_db, alike_rounded.sqnr_db


@dataclass(frozen=True)
class _Ours:
    """The likeliest next token, and the logarithms of the probabilities of some, float64 [k]."""

    likeliest: int
    logs: NDArray[np.float64]


def _of_steps(
    session: InferenceSession,
    steps: Sequence[llama_cpp.NextToken],
    prompts: Sequence[Sequence[int]],
    ingested: Path,
    language: LanguageFacts,
) -> list[_Ours]:
    """What the graph of a session makes of the tokens of each step; each text is one run."""
    rows = rows_of(ingested, language)
    made = [
        logits
        for tokens in prompts
        for logits in Walk(language, 1).run(lambda feed: run(session, rows(feed)), Lengths(len(tokens), 1), tokens)
    ]
    found = []
    for step in steps:
        logits = made[step.prompt][step.read - 1].astype(np.float64)
        logs = logits - logits.max()
        found.append(_Ours(int(np.argmax(logits)), logs[step.tokens] - math.log(float(np.exp(logs).sum()))))
    return found


def _divergence(theirs: NDArray[np.float64], ours: NDArray[np.float64]) -> float:
    """D(theirs || ours) in nats, with all tokens but the likeliest as one."""
    told = float(np.sum(np.exp(theirs) * (theirs - ours)))
    rest, mine = 1 - float(np.exp(theirs).sum()), 1 - float(np.exp(ours).sum())
    return told + (rest * math.log(rest / mine) if rest > _REST and mine > _REST else 0.0)


def _centred(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(logs - logs.mean())


def _shown(db: float | None) -> str:
    return "no number" if db is None else f"{db:.1f} dB"
