"""The buckets of one component: those of the config, reduced to the length axes that the component has."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.config.load import Bucket, ModelConfig
from pipeline.contracts import ingest
from pipeline.contracts.measures import Buckets
from pipeline.frozen import dataclass
from pipeline.model import Manifest
from pipeline.plan.steps import Step


@dataclass(frozen=True)
class OwnBuckets:
    """The buckets of a component with these `axes`. Buckets of the config that are equal on them are one."""

    axes: frozenset[str]
    all: tuple[Bucket, ...]
    fixed: Mapping[str, int]
    """Sizes of the axes that the config fixes."""

    @classmethod
    def of(cls, config: ModelConfig, found: ingest.Facts) -> OwnBuckets:
        """The buckets of a component, by the facts of its ingest."""
        axes = found.axes
        fixed = {axis: size for axis, size in config.fixed.items() if axis in axes}
        return cls(frozenset(axes), config.buckets_on(axes), fixed)

    def own(self, bucket: Bucket) -> Bucket:
        """The bucket of this component that a bucket of the config becomes."""
        return bucket.on(self.axes)

    @classmethod
    def of_step(cls, step: Step, manifests: Mapping[str, Manifest]) -> OwnBuckets | None:
        """The buckets of the component of a step; None while that was not ingested."""
        found = manifests.get(step.ingests.get(step.component or "", ""))
        return cls.of(step.config, found.read(ingest.Facts.from_json)) if found else None

    @property
    def named(self) -> Buckets:
        """The axes of each bucket, by the bucket's name."""
        return {bucket.name: bucket.axes for bucket in self.all}
