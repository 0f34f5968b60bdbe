"""Supertonic-TTS-2 run as an application runs it, so that what goes into each component can be recorded.

Used by `configs/supertonic-tts-2.yaml`, which also fetches what is read here: tokenizer.json, config.json and voices.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

if TYPE_CHECKING:
    from pipeline.inputs.samples.record import RecordedSample, Sessions

STEPS = 5
SPEED = 1.05
STYLE_WIDTH = 128


def run(sessions: Sessions, sample: RecordedSample) -> NDArray[np.float32]:
    """Speak one line and return the waveform, float32 [samples].

    The line is text in the tags of its language, as ``<en>Good morning.</en>``: the model's tokenizer expects them.
    Voices take turns. The noise comes from the sample's own generator, so every run records the same.
    """
    config = json.loads((sample.source / "config.json").read_text("utf-8"))
    frame = config["base_chunk_size"] * config["chunk_compress_factor"]
    channels = config["latent_dim"] * config["chunk_compress_factor"]

    ids = np.array([_tokenizer(sample.source).encode(sample.text).ids], np.int64)
    text: dict[str, NDArray[Any]] = {"attention_mask": np.ones_like(ids), "style": _voice(sample.source, sample.index)}
    hidden, durations = sessions["text_encoder"].run(["last_hidden_state", "durations"], {"input_ids": ids, **text})

    length = math.ceil(float(durations[0]) / SPEED * config["sampling_rate"] / frame)
    latents = sample.rng.standard_normal((1, channels, length), np.float32)
    for step in range(STEPS):
        (latents,) = sessions["latent_denoiser"].run(
            ["denoised_latents"],
            {
                "noisy_latents": latents,
                "latent_mask": np.ones((1, length), np.int64),
                "encoder_outputs": hidden,
                "timestep": np.array([step], np.float32),
                "num_inference_steps": np.array([STEPS], np.float32),
                **text,
            },
        )
    (waveform,) = sessions["voice_decoder"].run(["waveform"], {"latents": latents})
    return np.asarray(waveform[0], np.float32)


def _tokenizer(source: Path) -> Tokenizer:
    tokenizer: Tokenizer = Tokenizer.from_str((source / "tokenizer.json").read_text("utf-8"))
    return tokenizer


def _voice(source: Path, index: int) -> NDArray[np.float32]:
    """A voice's style, float32 [1, 101, 128]."""
    voices = sorted((source / "voices").glob("*.bin"))
    return np.fromfile(voices[index % len(voices)], "<f4").astype(np.float32).reshape(1, -1, STYLE_WIDTH)
