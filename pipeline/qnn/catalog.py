"""The SoCs that contexts can be built for, and the names people know them by.

Ids, chip names, Hexagon architectures and VTCM sizes are facts that public tables agree on: ExecuTorch's
`backends/qualcomm/serialization/qc_schema.py`, LiteRT's Qualcomm SoC table, and `devices_and_chipsets` of AI Hub
Models. Id, chip name and architecture of every row are also held against the installed QNN SDK by
`tests/qnn/test_catalog.py`; where a table says otherwise, the SDK's answer is here and the row says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from pipeline.errors import ConfigError
from pipeline.frozen import dataclass
from pipeline.plain_text import did_you_mean
from pipeline.qnn.target import FLOAT16_HTP_ARCH


@dataclass(frozen=True)
class Soc:
    """One system on a chip with a Hexagon tensor processor (HTP).

    A context binary fits one `soc_model` only: two SoCs of one architecture don't run each other's binaries.
    """

    soc_model: int
    """The number by which the QNN SDK knows it."""
    name: str
    """The name of its targets: lower case, safe in a path."""
    chip: str
    """The vendor's part number; where one die is sold under several, the one the SDK uses."""
    htp_arch: int
    """Hexagon architecture: 73 for v73."""
    vtcm_mb: int | None
    """Megabytes of fast memory on the HTP (VTCM); None where no public table gives it."""
    also_known_as: tuple[str, ...] = ()
    """Marketing names and other part numbers of the same die."""
    note: str = ""
    """Where tables disagree, or what is easily confused."""

    @property
    def computes_float16(self) -> bool:
        """Whether components with `precision: fp16` can run on it."""
        return self.htp_arch >= FLOAT16_HTP_ARCH

    @property
    def most_vtcm_mb(self) -> int:
        """The most VTCM to compile for: that of the SoC or, if none is published, the largest of all SoCs."""
        return self.vtcm_mb or max(soc.vtcm_mb or 0 for soc in SOCS)

    def usable_vtcm_mb(self, asked: int | None) -> int | None:
        """The VTCM to compile for: `asked`, or all of it; None leaves it to the compiler, which takes 4 MB.

        Raises:
            ConfigError: the SoC has less, or none is known that has as much. The compiler accepts any figure, and the
                device then refuses the binary.
        """
        if asked is None:
            return self.vtcm_mb
        if asked > self.most_vtcm_mb:
            who = f"{self.name} has" if self.vtcm_mb else "no SoC is known to have more than"
            raise ConfigError(
                f"{who} {self.most_vtcm_mb} MB of VTCM, not {asked}",
                why="a context compiled for more than there is can't be loaded on the device",
                remedy=f"set vtcm_mb to {self.most_vtcm_mb} or less, or leave it out",
            )
        return asked


SOCS: tuple[Soc, ...] = (
    # Windows laptops
    Soc(60, "snapdragon-x-elite", "SC8380XP", 73, 8, ("Snapdragon X Elite", "Snapdragon X Plus", "Snapdragon X")),
    Soc(88, "snapdragon-x2-elite", "SC8480XP", 81, None, ("Snapdragon X2 Elite",)),
    Soc(120, "sc8340xp", "SC8340XP", 73, None, note="one table maps it to id 60; the SDK keeps it apart"),
    # phones and tablets
    Soc(30, "sm8350", "SM8350", 68, 4, ("Snapdragon 888",)),
    Soc(36, "sm8450", "SM8450", 69, 8, ("Snapdragon 8 Gen 1",)),
    Soc(42, "sm8475", "SM8475", 69, 8, ("Snapdragon 8+ Gen 1",)),
    Soc(43, "sm8550", "SM8550", 73, 8, ("Snapdragon 8 Gen 2",)),
    Soc(57, "sm8650", "SM8650", 75, 8, ("Snapdragon 8 Gen 3",)),
    Soc(69, "sm8750", "SM8750", 79, 8, ("Snapdragon 8 Elite",)),
    Soc(85, "sm8735", "SM8735", 73, None, ("Snapdragon 8s Gen 4",), note="a draft table says v79; the SDK says v73"),
    Soc(87, "sm8850", "SM8850", 81, 8, ("Snapdragon 8 Elite Gen 5",)),
    Soc(97, "sm8845", "SM8845", 81, 8, note="same architecture as SM8850, and not the same SoC"),
    # glasses, headsets, watches
    Soc(45, "sxr1230p", "SXR1230P", 73, 2),
    Soc(46, "ssg2115p", "SSG2115P", 73, 2),
    Soc(53, "sxr2230p", "SXR2230P", 69, 8),
    Soc(58, "ssg2125p", "SSG2125P", 73, 2),
    Soc(75, "sxr2330p", "SXR2330P", 79, 8),
    Soc(95, "sar2230p", "SAR2230P", 81, 4),
    Soc(96, "sw6100", "SW6100", 81, 4),
    # cars, robots, industry
    Soc(39, "sa8295", "SA8295", 68, 8),
    Soc(52, "sa8255", "SA8255", 73, 8, ("SA8650", "SA8775")),
    Soc(62, "sa8540", "SA8540", 68, 8),
    Soc(72, "sa8797", "SA8797", 81, 16),
    Soc(77, "qcs9100", "QCS9100", 73, 8, ("QCS9075",)),
    Soc(82, "qcs8300", "QCS8300", 75, 8, ("QCS8275",)),
    Soc(93, "qcs6490", "QCS6490", 68, 2, ("QCM6490",), note="older tables give it id 35"),
)


@cache
def find(name: str) -> Soc | None:
    """The SoC of any of its names, as for :func:`resolve`; None where there is none."""
    return _index().get(_slug(name))


def resolve(name: str) -> Soc:
    """The SoC of any of its names: target name, part number, marketing name, or SDK id, in any spelling of case.

    Raises:
        ConfigError: no SoC has this name.
    """
    soc = find(name)
    if soc is None:
        raise ConfigError(
            f"unknown target '{name}'{did_you_mean(_slug(name), _index())}",
            why=f"the SoC catalogue has {', '.join(names())}",
            remedy="use one of these names; a SoC that is missing is one line in pipeline/qnn/catalog.py",
        )
    return soc


def names() -> tuple[str, ...]:
    """The target names of all SoCs, sorted."""
    return tuple(sorted(soc.name for soc in SOCS))


def spellings() -> Mapping[str, str]:
    """All names of all SoCs, as people write them and as in a path, each with the target name it stands for."""
    return {spelling: soc.name for soc in SOCS for name in _names_of(soc) for spelling in (name, _slug(name))}


@cache
def _index() -> Mapping[str, Soc]:
    return {_slug(name): soc for soc in SOCS for name in _names_of(soc)}


def _names_of(soc: Soc) -> tuple[str, ...]:
    return (soc.name, soc.chip, *soc.also_known_as, str(soc.soc_model))


def _slug(name: str) -> str:
    """`Snapdragon 8+ Gen 1` and `snapdragon_8_plus_gen_1` are one name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().replace("+", " plus ")).strip("-")
