"""Encoded images as arrays: decoded, cut and varied by Pillow, each row by its own numbers."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcdist.base.errors import DataError
from hpcdist.base.extras import install_command
from hpcdist.data.columnar.order import key_of

if TYPE_CHECKING:
    from hpcdist.data.columnar.targets import ColumnTarget  # needs pyarrow, an extra

_MODES = {1: "L", 3: "RGB"}
_DEEP = ("I", "F")  # modes of more than 8 bits; converting would cut them off
_STRETCH = math.log(4 / 3)  # of a random crop, in either direction


@dataclass(frozen=True)
class Images:
    """How `read` decodes a column of images (JPEG, PNG, ..., all that Pillow knows).

    ``size`` is (height, width). Without ``crop`` the middle of an image is scaled to it, as large
    as its sides allow; ``crop=0.08`` takes a random part of at least 8 % of the area, stretched by
    at most 4 / 3. ``flip`` mirrors half of them; ``color=0.4`` changes brightness, contrast and
    saturation by up to 40 %, at random. ``apply(image, random)`` gets the Pillow image and a
    numpy.random.Generator, and returns an image or an array of that size.

    A row is uint8[channels, height, width], or with ``layout="HWC"`` [height, width, channels];
    with ``mean`` and ``std``, of each channel, float32: (value / 255 - mean) / std. ``channels`` is
    3 (RGB) or 1 (grey). With ``folder`` the column holds names of files there, not images.

    What is drawn follows from ``seed``, the epoch and the number of the row.
    """

    size: tuple[int, int]
    channels: int = 3
    layout: str = "CHW"
    crop: float | None = None
    flip: bool = False
    color: float = 0.0
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    apply: Callable[[Any, np.random.Generator], Any] | None = None
    folder: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise DataError for what cannot be meant, or if Pillow is missing."""
        try:
            import PIL.Image  # noqa: F401  # an extra
        except ModuleNotFoundError:
            raise DataError(f"Images needs Pillow: {install_command('images')}") from None
        size = tuple(self.size) if isinstance(self.size, Sequence) else ()
        if len(size) != 2 or not all(type(side) is int and side > 0 for side in size):
            raise DataError(f"Images: size must be (height, width), got {self.size!r}")
        if self.channels not in _MODES:
            raise DataError(f"Images: channels must be 3 (RGB) or 1 (grey), got {self.channels!r}")
        if self.layout not in ("CHW", "HWC"):
            raise DataError(f"Images: layout must be 'CHW' or 'HWC', got {self.layout!r}")
        if self.crop is not None and not (_is_number(self.crop) and 0 < self.crop <= 1):
            raise DataError(f"Images: crop must be a share of the area, 0..1, got {self.crop!r}")
        if not (_is_number(self.color) and 0 <= self.color <= 1):
            raise DataError(f"Images: color must be 0..1, got {self.color!r}")
        if (self.mean is None) != (self.std is None):
            raise DataError("Images: give both mean and std, or neither")
        for field, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and np.shape(values) != (self.channels,):
                raise DataError(
                    f"Images: {field} must be {self.channels} numbers, one for each channel, got "
                    f"{values!r:.80}"
                )
        if self.apply is not None and not callable(self.apply):
            raise DataError(f"Images: apply must be a function, got {self.apply!r:.80}")
        if type(self.seed) is not int:
            raise DataError(f"Images: seed must be an integer, got {self.seed!r:.80}")
        if self.std is not None and not all(value > 0 for value in self.std):
            raise DataError(f"Images: std must be > 0, got {self.std!r:.80}")

    @property
    def sample(self) -> tuple[int, ...]:
        """Shape of a row."""
        return (self.channels, *self.size) if self.layout == "CHW" else (*self.size, self.channels)

    @property
    def nothing(self) -> np.ndarray:
        """What stands for an image that cannot be decoded."""
        return np.zeros(self.sample, np.uint8 if self.mean is None else np.float32)

    def refuse(self, target: ColumnTarget) -> None:
        """Raise DataError if a variable has another shape."""
        expected = target.sample
        fits = expected is None or (
            len(expected) == 3
            and all(w in (-1, extent) for w, extent in zip(expected, self.sample))
        )
        if target.ragged or not fits:
            raise DataError(
                f"data.read: variable {target.name!r} takes rows of shape {expected}, Images of "
                f"column {target.columns[0]!r} gives {self.sample}: see size, channels and layout"
            )

    def row(self, value: bytes, epoch: int, number: int) -> np.ndarray:
        """Return one image as an array; any error if it cannot be decoded."""
        from PIL import Image, ImageOps, UnidentifiedImageError

        source = io.BytesIO(value) if self.folder is None else Path(self.folder, value.decode())
        try:
            begun = Image.open(source)
        except UnidentifiedImageError:  # its words hold an address
            raise ValueError("not an image that Pillow knows") from None
        with begun as opened:
            if opened.mode.startswith(_DEEP) or _is_cut(opened):
                raise ValueError(f"an image of mode {opened.mode}: more than 8 bits for a channel")
            image = ImageOps.exif_transpose(opened).convert(_MODES[self.channels])
        image = self._varied(image, [key_of(self.seed, epoch, number, k) for k in range(9)])
        pixels = np.asarray(image)
        if self.channels == 1 and pixels.ndim == 2:
            pixels = pixels[:, :, None]
        if pixels.shape != (*self.size, self.channels) or pixels.dtype != np.uint8:
            raise DataError(
                f"Images: apply must return an image of size {self.size}, {self.channels} channels "
                f"of 8 bits; got shape {pixels.shape} of {pixels.dtype}"
            )
        if self.mean is not None:
            mean, std = (np.asarray(v, np.float32) for v in (self.mean, self.std))
            pixels = (pixels.astype(np.float32) / np.float32(255) - mean) / std
        return np.ascontiguousarray(pixels.transpose(2, 0, 1) if self.layout == "CHW" else pixels)

    def _varied(self, image: Any, keys: Sequence[int]) -> Any:
        """Return the image in the size that is wanted, varied by random bits."""
        from PIL import Image, ImageEnhance, ImageOps

        draws = [key / 2**64 for key in keys]
        height, width = self.size
        if self.crop is None:
            image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
        else:
            area = image.width * image.height * (self.crop + (1 - self.crop) * draws[0])
            stretch = width / height * math.exp(_STRETCH * (2 * draws[1] - 1))
            wide = min(math.sqrt(area * stretch), image.width)
            high = min(math.sqrt(area / stretch), image.height)
            left, top = draws[2] * (image.width - wide), draws[3] * (image.height - high)
            box = (left, top, left + wide, top + high)
            image = image.resize((width, height), Image.Resampling.BILINEAR, box)
        if self.flip and draws[4] < 0.5:
            image = ImageOps.mirror(image)
        if self.color:
            enhancers = [ImageEnhance.Brightness, ImageEnhance.Contrast]
            enhancers += [ImageEnhance.Color] if self.channels == 3 else []
            for enhancer, drawn in zip(enhancers, draws[5:8]):
                image = enhancer(image).enhance(1 + self.color * (2 * drawn - 1))
        return image if self.apply is None else self.apply(image, np.random.default_rng(keys[8]))


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_cut(opened: Any) -> bool:
    """Whether Pillow, which has no colors of more than 8 bits, will cut a file's to 8."""
    for tile in opened.tile:
        codec, args = tile[0], tile[3]
        raw, *more = args if isinstance(args, tuple) else (args,)
        if isinstance(raw, str) and ";16" in raw and raw != "BGR;16":  # PNG, TIFF; 5, 6 and 5 bits
            return True
        if codec.startswith("ppm") and more and more[0] > 255:
            return True
    return False
