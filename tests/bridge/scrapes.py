"""A parser of metrics that works as in Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """The families and samples of an exposition."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families: dict[str, Metric] = {}
        for family in text_string_to_metric_families(text):
            assert family.name not in self.families, f"{family.name} comes twice"
            self.families[family.name] = family

    @property
    def names(self) -> set[str]:
        """The names of the samples."""
        return {sample.name for family in self.families.values() for sample in family.samples}

    @property
    def ours(self) -> set[str]:
        """The names of the families of nousd, without the creation times of others."""
        return {
            name
            for name in self.families
            if name.startswith("nousd_") and not self._is_time_of_another(name)
        }

    def _is_time_of_another(self, name: str) -> bool:
        return name.endswith("_created") and name.removesuffix("_created") in self.families

    def value(self, name: str, **labels: str) -> float:
        """Return the value of the one sample with these labels."""
        (value,) = [value for given, value in self.samples(name) if given == labels]
        return value

    def by(self, name: str, *labels: str) -> dict[Any, float]:
        """Return the values that are not 0, by the values of labels."""
        found = {
            tuple(given[label] for label in labels): value for given, value in self.samples(name)
        }
        return {key[0] if len(key) == 1 else key: value for key, value in found.items() if value}

    def samples(self, name: str) -> Iterable[tuple[dict[str, str], float]]:
        """Yield labels and value of each sample of that name."""
        for family in self.families.values():
            for sample in family.samples:
                if sample.name == name:
                    yield sample.labels, sample.value
