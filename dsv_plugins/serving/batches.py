"""Judges several images in one call, and lets those that wait together share it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dsv_plugins.errors import DSVError
from dsv_plugins.pixels import Pixels
from dsv_plugins.run.model import Model
from dsv_plugins.types import ANOMALOUS, NORMAL, height_and_width

__all__ = ["Batches", "Judged", "judge_all"]


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """What a model makes of one image; p-value and verdict are None if it is not calibrated."""

    score: float
    light: float
    p_value: float | None
    verdict: str | None
    heatmap: NDArray[Any] | None


def judge_all(model: Model, images: Sequence[Pixels], *, heatmaps: bool = False) -> list[Judged | DSVError]:
    """Judge images of the model's size in one call. If it fails, each by itself: one may be at fault."""
    try:
        found = model.predict(torch.from_numpy(np.stack(images)), heatmaps=heatmaps)
    except DSVError as error:
        return [error] if len(images) == 1 else [judge_all(model, [each], heatmaps=heatmaps)[0] for each in images]
    p_values = [None] * len(images) if found.p_values is None else found.p_values.tolist()
    alarms = [None] * len(images) if found.anomalous is None else found.anomalous.tolist()
    maps = [None] * len(images) if found.heatmaps is None else list(found.heatmaps.numpy())
    verdicts = {True: ANOMALOUS, False: NORMAL, None: None}
    return [
        Judged(score, light, p_value, verdicts[alarm], heat)
        for score, light, p_value, alarm, heat in zip(
            found.scores.tolist(), found.light.tolist(), p_values, alarms, maps, strict=True
        )
    ]


class Batches:
    """Judges images for several callers, one batch after the other; those that come meanwhile are the next one.

    Args:
        model: The model.
        most: Images of a batch.
        observe: Called with the size of each batch.
    """

    def __init__(self, model: Model, most: int, observe: Callable[[int], object]) -> None:
        self._model, self._most, self._observe = model, most, observe
        self._waiting: asyncio.Queue[tuple[Pixels, bool, asyncio.Future[Judged]]] = asyncio.Queue()

    async def judge(self, pixels: Pixels, *, heatmap: bool) -> Judged:
        """Return what the model makes of an image of its size.

        Raises:
            DSVError: It can make nothing of it.
        """
        future: asyncio.Future[Judged] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((pixels, heatmap, future))
        return await future

    async def run(self) -> None:
        """Judge what waits, until cancelled. The model is used by one thread only."""
        loop = asyncio.get_running_loop()
        empty = np.zeros((3, *height_and_width(self._model.record.image_size)), np.uint8)
        with ThreadPoolExecutor(1) as thread:
            await loop.run_in_executor(thread, self._judged, [empty], True)  # or the first image would take longer
            while True:
                batch = [await self._waiting.get()]
                while len(batch) < self._most and not self._waiting.empty():
                    batch.append(self._waiting.get_nowait())
                images, heatmaps, futures = zip(*batch, strict=True)
                self._observe(len(batch))
                outcomes = await loop.run_in_executor(thread, self._judged, images, any(heatmaps))
                for future, wants_heatmap, outcome in zip(futures, heatmaps, outcomes, strict=True):
                    if future.cancelled():  # its caller has gone
                        continue
                    if isinstance(outcome, Judged):
                        future.set_result(outcome if wants_heatmap else replace(outcome, heatmap=None))
                    else:
                        future.set_exception(outcome)

    def _judged(self, images: Sequence[Pixels], heatmaps: bool) -> Sequence[Judged | Exception]:
        try:
            return judge_all(self._model, images, heatmaps=heatmaps)
        except Exception as error:  # whatever a plugin does, the next images are judged
            return [error] * len(images)
