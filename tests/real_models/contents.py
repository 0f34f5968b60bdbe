"""Contents of files of many types, and sentences: of pinned packages, of this project, and made by the library."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import sqlite3
import tarfile
import wave
import zipfile
from pathlib import PurePosixPath

import numpy as np

from tests.real_models.model import Share
from tests.real_models.packages import DDDDOCR, FONTS, PEOPLE, PHOTOS, RAPIDOCR, ROOT, Package, members, read

_OF_EACH = 6
_LARGEST = 2 << 20

NEIGHBOURS = [
    ("The cat sleeps on the sofa all afternoon.", "A kitten is napping on the couch."),
    ("Interest rates were raised by the central bank.", "The bank increased the cost of borrowing."),
    ("He fixed the leaking tap in the kitchen.", "The plumber repaired the faucet."),
    ("The team won the final after extra time.", "They became champions in overtime."),
    ("Heavy snow closed the mountain pass.", "The road over the mountains is shut because of snowfall."),
    ("She plays the violin in an orchestra.", "The musician performs with a symphony."),
    ("The recipe needs two eggs and a cup of flour.", "For this cake you mix flour and eggs."),
    ("The rocket reached orbit after nine minutes.", "The spacecraft was launched into space."),
    ("My laptop battery lasts only two hours.", "The computer runs out of power quickly."),
    ("The doctor prescribed antibiotics.", "The physician gave the patient medicine."),
    ("Our train was delayed for an hour.", "The railway service arrived late."),
    ("Children built a castle of sand on the beach.", "Kids were playing at the seaside."),
]


def files(share: Share) -> list[bytes]:
    """The contents of some dozens of files of about forty types; the two shares have none in common."""
    every = 2 if share is Share.CALIBRATION else 6
    return [data for number, data in enumerate(_packaged() + _made()) if number % every == share.value]


def _packaged() -> list[bytes]:
    found: dict[str, list[tuple[Package, str]]] = {}
    for package in (FONTS, PHOTOS, PEOPLE, RAPIDOCR, DDDDOCR):
        for member in members(package):
            kind = PurePosixPath(member).suffix or PurePosixPath(member).name
            if len(found.setdefault(kind, [])) < _OF_EACH:
                found[kind].append((package, member))
    contents = [read(package, member) for entries in found.values() for package, member in entries]
    return [data for data in contents if 64 <= len(data) <= _LARGEST]


def _made() -> list[bytes]:
    """Two of each type that the standard library writes."""
    out: list[bytes] = []
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        rows = [{"id": int(n), "name": f"item {n}", "price": float(rng.integers(1, 9999)) / 100} for n in range(60)]
        text = (ROOT / "docs" / "accuracy.md").read_bytes()[seed * 2000 : seed * 2000 + 6000]
        table = io.StringIO()
        writer = csv.DictWriter(table, ["id", "name", "price"])
        writer.writeheader()
        writer.writerows(rows)
        zipped, tarred, sound, arrays = io.BytesIO(), io.BytesIO(), io.BytesIO(), io.BytesIO()
        with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(zipfile.ZipInfo("notes.txt"), text)
        with tarfile.open(fileobj=tarred, mode="w") as tar:
            entry = tarfile.TarInfo("notes.txt")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
        with wave.open(sound, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(rng.integers(-9000, 9000, 4000).astype("<i2").tobytes())
        np.save(arrays, rng.standard_normal(500))
        database = sqlite3.connect(":memory:")
        database.execute("create table items (id integer primary key, name text, price real)")
        database.executemany("insert into items values (:id, :name, :price)", rows)
        items = "".join(f"<li class='item'>{row['name']}: <b>{row['price']}</b></li>\n" for row in rows)
        page = f"<!DOCTYPE html>\n<html><head><title>{seed}</title></head><body><ul>\n{items}</ul></body></html>"
        inserts = "".join(f"INSERT INTO items VALUES ({r['id']}, '{r['name']}', {r['price']});\n" for r in rows)
        out += [
            json.dumps(rows, indent=seed).encode(),
            table.getvalue().encode(),
            page.encode(),
            ("CREATE TABLE items (id INTEGER, name TEXT, price REAL);\n" + inserts).encode(),
            zipped.getvalue(), tarred.getvalue(), sound.getvalue(), arrays.getvalue(), database.serialize(),
            gzip.compress(text, mtime=0), bz2.compress(text), lzma.compress(text), rng.bytes(3000),
        ]  # fmt: skip
        database.close()
    return out


def sentences(share: Share) -> list[str]:
    """Sentences in English: the project's own for calibration, pairs of like meaning for the rest."""
    if share is Share.CALIBRATION:
        lines = (ROOT / "calibration" / "minilm" / "sentences.txt").read_text("utf-8").splitlines()
        return [line for line in lines if line.strip()][:64]
    return [sentence for pair in NEIGHBOURS for sentence in pair]
