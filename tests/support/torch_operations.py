"""The operations of PyTorch that models have before and after a sampler.

An operation is a function of a tensor and its :class:`Axes`, so that the same operation is applied
to images (B, C, spatial axes) and to grids (B, spatial axes, coordinates). It keeps the first axis,
the number of channels and the number of axes, and may change the lengths of spatial axes.
Operations that PyTorch defines for channels first only are :func:`planar`: a grid is permuted
before and after them, as models do with flow fields.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


@dataclass(frozen=True)
class Axes:
    """The axes of a tensor.

    Attributes:
        channel: the axis of channels or coordinates.
        rank: the number of spatial axes.
    """

    channel: int
    rank: int

    @property
    def spatial(self) -> tuple[int, ...]:
        """The spatial axes, from the outer to the inner one."""
        return tuple(axis for axis in range(1, self.rank + 2) if axis != self.channel)

    @property
    def outer(self) -> int:
        """The outermost spatial axis: the rows of an image, the depth of a volume."""
        return self.spatial[0]

    @property
    def inner(self) -> int:
        """The innermost spatial axis: the columns of an image."""
        return self.spatial[-1]


def image_axes(tensor: Tensor) -> Axes:
    """Return the axes of a tensor with channels first."""
    return Axes(1, tensor.ndim - 2)


def grid_axes(tensor: Tensor) -> Axes:
    """Return the axes of a tensor with channels last."""
    return Axes(tensor.ndim - 1, tensor.ndim - 2)


Operation = Callable[[Tensor, Axes], Tensor]
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


def channels_last(t: Tensor, axes: Axes) -> Tensor:
    """Permute the channels to the end."""
    return t.permute(0, *axes.spatial, axes.channel)


def restored(last: Tensor, axes: Axes) -> Tensor:
    """Permute channels from the end to where ``axes`` has them."""
    spatial = range(1, last.ndim - 1)
    channel = last.ndim - 1
    return last.permute(0, channel, *spatial) if axes.channel == 1 else last


def planar(function: Callable[[Tensor], Tensor]) -> Operation:
    """Return the operation of a function that needs channels first."""

    def operation(t: Tensor, axes: Axes) -> Tensor:
        if axes.channel == 1:
            return function(t)
        planes = function(t.permute(0, axes.channel, *axes.spatial))
        return planes.permute(0, *range(2, t.ndim), 1)

    return operation


def sliced(axis: int, start: int | None, stop: int | None, step: int | None = None):
    """Return the index of a slice of one axis, as it is written in models: ``t[:, :, 2:10]``."""
    return (*[slice(None)] * axis, slice(start, stop, step))


def inner_slice(t: Tensor, axes: Axes) -> Tensor:
    """Slice the innermost axis: ``x[..., 1:-1]``, ``g[..., 1:-1, :]``."""
    if axes.inner == t.ndim - 1:
        return t[..., 1:-1]
    return t[..., 1:-1, :]


def slice_of_channels(t: Tensor, axes: Axes) -> Tensor:
    """Repeat the channels, and slice as many of them as there were."""
    channels = t.shape[axes.channel]
    return torch.cat((t, t), axes.channel)[sliced(axes.channel, 1, 1 + channels)]


def channel_slices_stacked(t: Tensor, axes: Axes) -> Tensor:
    """Index each channel, and stack them in the reverse order."""
    channels = [t.select(axes.channel, channel) for channel in range(t.shape[axes.channel])]
    return torch.stack(channels[::-1], axes.channel)


def swapped_halves(parts: tuple[Tensor, ...], axis: int) -> Tensor:
    return torch.cat((parts[1], parts[0], *parts[2:]), axis)


def indexed_by_list(t: Tensor, axes: Axes, axis: int) -> Tensor:
    """Index an axis with a list: ``t[:, [1, 0]]``."""
    return t[(*[slice(None)] * axis, [1, 0, *range(2, t.shape[axes.channel])])]


def gathered(t: Tensor, axes: Axes) -> Tensor:
    """Gather elements in the order of one channel. A ramp makes equal elements differ."""
    ramp = torch.arange(t.shape[axes.inner], dtype=torch.float32) * 0.01
    ramp = ramp.reshape(shape_along(t, axes.inner))
    order = (t.narrow(axes.channel, 0, 1) + ramp).argsort(axes.inner)
    return t.gather(axes.inner, order.expand(t.shape))


def assigned(t: Tensor, axes: Axes) -> Tensor:
    """Assign to a slice: ``t[:, :, 0:2] = t[:, :, 1:3] / 2``."""
    result = t.clone()
    result[sliced(axes.outer, 0, 2)] = t[sliced(axes.outer, 1, 3)] / 2
    return result


def liif(t: Tensor, axes: Axes) -> Tensor:
    """Shift and clamp a coordinate in place, and flip the coordinates, as LIIF does."""
    coordinates = channels_last(t, axes).clone()
    coordinates[..., 0] += 1 / t.shape[axes.outer] + 1e-6
    coordinates.clamp_(-1 + 1e-6, 1 - 1e-6)
    return restored(coordinates.flip(-1), axes)


def shape_along(t: Tensor, axis: int) -> list[int]:
    """Return the shape that broadcasts a vector along an axis."""
    return [-1 if axis == index else 1 for index in range(t.ndim)]


def plus_meshgrid(t: Tensor, axes: Axes) -> Tensor:
    """Add the pixel coordinates of a meshgrid, divided by the lengths."""
    lengths = [t.shape[axis] for axis in axes.spatial]
    planes = torch.meshgrid(*(torch.arange(length) for length in lengths), indexing="ij")
    positions = [plane / length for plane, length in zip(planes, lengths, strict=True)]
    return t * 0.5 + torch.stack(positions, -1).mean(-1).unsqueeze(axes.channel - 1)


def plus_linspace(t: Tensor, axes: Axes) -> Tensor:
    """Add coordinates from -1 to 1."""
    positions = torch.linspace(-1, 1, t.shape[axes.inner])
    return t * 0.5 + positions.reshape(shape_along(t, axes.inner)) * 0.4


def plus_arange(t: Tensor, axes: Axes) -> Tensor:
    """Add the centers of pixels."""
    positions = (torch.arange(t.shape[axes.outer], dtype=torch.float32) + 0.5) / t.shape[axes.outer]
    return t * 0.5 + positions.reshape(shape_along(t, axes.outer)) * 0.3


def normalised_by_size(t: Tensor, axes: Axes) -> Tensor:
    """Convert to pixels and back: ``2 * t / (W - 1) - 1``."""
    columns = t.shape[axes.inner]
    pixels = (t + 1) / 2 * (columns - 1)
    return 2 * pixels / (columns - 1) - 1


def valid_ratio(t: Tensor, axes: Axes) -> Tensor:
    """Multiply by the ratio of the pixels that a mask has, as DETR's reference points are."""
    mask = torch.ones_like(t.narrow(axes.channel, 0, 1))
    ratio = mask.sum(axes.inner, keepdim=True) / t.shape[axes.inner]
    return t * ratio


def mixed(equation: str) -> Operation:
    """Return an einsum of the channels with a matrix."""

    def operation(t: Tensor, axes: Axes) -> Tensor:
        channels = t.shape[axes.channel]
        matrix = torch.eye(channels) * 0.9 + 0.1
        return restored(torch.einsum(equation, channels_last(t, axes), matrix), axes)

    return operation


def multiplied(t: Tensor, axes: Axes) -> Tensor:
    """Multiply the channels by a matrix of the batch, as homographies do."""
    points = channels_last(t, axes).flatten(1, -2)
    channels = t.shape[axes.channel]
    matrices = (torch.eye(channels) * 0.8 + 0.1).expand(t.shape[0], channels, channels)
    moved = torch.bmm(points, matrices)
    return restored(moved.reshape(channels_last(t, axes).shape), axes)


def one_hot(t: Tensor, axes: Axes) -> Tensor:
    """Add a channel of one-hot numbers."""
    channels = t.shape[axes.channel]
    classes = (t.select(axes.channel, 0) > 0.2).long()
    return t * 0.7 + restored(F.one_hot(classes, channels).to(t.dtype), axes) * 0.2


def topk_of_positions(t: Tensor, axes: Axes) -> Tensor:
    """Choose the positions with the largest scores, as two-stage detectors do."""
    lengths = {1: (12,), 2: (3, 4), 3: (3, 2, 3)}[axes.rank]
    flat = channels_last(t, axes).flatten(1, -2)
    # Positions outside X have equal scores, which libraries would order differently.
    ramp = torch.arange(flat.shape[1], dtype=torch.float32) * 0.003
    index = (flat.sum(-1) + ramp).topk(math.prod(lengths), dim=1).indices
    chosen = flat.gather(1, index.unsqueeze(-1).expand(-1, -1, t.shape[axes.channel]))
    return restored(chosen.reshape(t.shape[0], *lengths, t.shape[axes.channel]), axes)


def resized(t: Tensor, mode: str, **options: float | bool) -> Tensor:
    rank = t.ndim - 2
    mode = LINEAR[rank] if mode == "linear" or (mode == "bicubic" and rank != 2) else mode
    aligned = {} if mode in ("nearest", "area") else {"align_corners": False}
    return F.interpolate(t, mode=mode, **(aligned | options))


def resized_to_half(t: Tensor) -> Tensor:
    """Resize to lengths that are computed from the tensor's."""
    lengths = [length // 2 for length in t.shape[2:]]
    return F.interpolate(t, size=lengths, mode="nearest")


def pooled(t: Tensor, kind: str, **options: int) -> Tensor:
    return getattr(F, f"{kind}_pool{t.ndim - 2}d")(t, **options)


def padded(t: Tensor, mode: str, value: float = 0.0) -> Tensor:
    sides = [1, 2, *[1, 1] * (t.ndim - 3)]
    return F.pad(t, sides, mode, value) if mode == "constant" else F.pad(t, sides, mode)


def padded_last_axes(t: Tensor, axes: Axes) -> Tensor:
    """Pad a grid with channels last, as it is: ``F.pad(g, (0, 0, 1, 1))``."""
    unpadded = (0, 0) if axes.channel == t.ndim - 1 else ()
    return F.pad(t, (*unpadded, 1, 1), value=0.5)


def convolved(t: Tensor) -> Tensor:
    rank = t.ndim - 2
    weights = torch.eye(t.shape[1]).reshape(t.shape[1], t.shape[1], *[1] * rank)
    weights = weights.expand(-1, -1, *[3] * rank) / 3**rank
    return getattr(F, f"conv{rank}d")(t, weights, padding=1)


def unfolded_columns(t: Tensor) -> Tensor:
    """Average the neighbors that F.unfold returns for images. Other ranks are pooled."""
    if t.ndim != 4:
        return pooled(t, "avg", kernel_size=3, stride=1, padding=1)
    columns = F.unfold(t, 3, padding=1)
    return columns.reshape(t.shape[0], t.shape[1], 9, t.shape[2], t.shape[3]).mean(2)


def normalised_layers(t: Tensor, axes: Axes) -> Tensor:
    last = channels_last(t, axes)
    return restored(F.layer_norm(last, [int(last.shape[-1])]), axes) * 0.5


def swapped_axes(t: Tensor, axes: Axes) -> Tensor:
    return t.transpose(axes.outer, axes.inner)


def permuted(t: Tensor, axes: Axes) -> Tensor:
    """Permute to channels last, compute there, and permute back."""
    scale = 1 - 0.05 * torch.arange(t.shape[axes.channel], dtype=torch.float32)
    return restored(channels_last(t, axes) * scale, axes)


def moved(t: Tensor, axes: Axes) -> Tensor:
    """Move the channels to the end and back. The older exporter writes negative axes wrongly."""
    last = t.ndim - 1
    return (t.movedim(axes.channel, last) * 0.9).movedim(last, axes.channel)


def reshaped(t: Tensor, axes: Axes) -> Tensor:
    """Flatten all spatial axes, compute, and restore them."""
    last = channels_last(t, axes)
    flat = last.reshape(last.shape[0], -1, last.shape[-1])
    flat = flat - flat.mean(1, keepdim=True) * 0.1
    return restored(flat.reshape(last.shape), axes)


def expanded(t: Tensor, axes: Axes) -> Tensor:
    """Expand the mean of the channels to all of them."""
    return t * 0.5 + t.mean(axes.channel, keepdim=True).expand(t.shape) * 0.5


def expanded_constant(t: Tensor, axes: Axes) -> Tensor:
    """Add a parameter that is expanded to the batch."""
    shape = [1] * t.ndim
    shape[axes.channel] = t.shape[axes.channel]
    offsets = torch.arange(t.shape[axes.channel], dtype=torch.float32).reshape(shape) * 0.05
    return t + offsets.expand(t.shape[0], *[-1] * (t.ndim - 1))


def repeated(t: Tensor, axes: Axes) -> Tensor:
    counts = [1] * t.ndim
    counts[axes.inner] = 2
    return t.repeat(counts)


def masked(t: Tensor, axes: Axes) -> Tensor:
    return t.masked_fill(t > 0.7, 0.25)


def nan_to_num(t: Tensor, axes: Axes) -> Tensor:
    """Replace the infinities that a division by zero returns for negative elements."""
    return torch.nan_to_num(t / (t > 0), nan=0.0, posinf=1.0, neginf=0.0)


def cumulated(t: Tensor, axes: Axes) -> Tensor:
    return t.cumsum(axes.inner) / t.shape[axes.inner]


def counted_pixels(t: Tensor, axes: Axes) -> Tensor:
    """Add positions that are the cumulative sum of a mask, as DETR's sine embedding."""
    mask = torch.ones_like(t.narrow(axes.channel, 0, 1))
    positions = mask.cumsum(axes.outer)
    last = positions[sliced(axes.outer, -1, None)]
    return t * 0.5 + positions / (last + 1e-6) * 0.3


def cat_zeros(t: Tensor, axes: Axes) -> Tensor:
    """Append a border of zeros with a shape that is computed."""
    shape = list(t.shape)
    shape[axes.outer] = 1
    return torch.cat((t, t.new_zeros(shape)), axes.outer)


def cat_flipped(t: Tensor, axes: Axes) -> Tensor:
    return torch.cat((t, t.flip(axes.inner)), axes.inner)


def rotated_batch(t: Tensor, axes: Axes) -> Tensor:
    """Move the first image of a batch to its end."""
    return torch.cat((t[1:], t[:1]))


def unbound_and_stacked(t: Tensor, axes: Axes) -> Tensor:
    """Unbind coordinates, change one, and stack them in another order."""
    first, *others = t.unbind(axes.channel)
    return torch.stack((*others, first * 0.5), axes.channel)


def sorted_positions(t: Tensor, axes: Axes) -> Tensor:
    return t.sort(axes.inner, descending=True).values


def chosen_by_mask(t: Tensor, axes: Axes) -> Tensor:
    return torch.where(t > 0, t, t * 0.25)


def wrapped(t: Tensor, axes: Axes) -> Tensor:
    """Wrap coordinates around, as equirectangular images do."""
    return torch.remainder(t + 1.25, 2.0) - 1


def polar(t: Tensor, axes: Axes) -> Tensor:
    """Convert the first two channels from polar coordinates."""
    radius, angle = t.select(axes.channel, 0), t.select(axes.channel, 1)
    others = [t.select(axes.channel, index) for index in range(2, t.shape[axes.channel])]
    planes = [radius * torch.cos(angle), radius * torch.sin(angle), *others]
    return torch.stack(planes, axes.channel)


def in_float64(t: Tensor, axes: Axes) -> Tensor:
    """Compute in float64 and convert back."""
    return (t.double() * 0.75 + 0.125).float()


def tiled(t: Tensor, axes: Axes) -> Tensor:
    """Repeat by unsqueeze, expand and flatten."""
    axis = axes.inner
    shape = [*t.shape[: axis + 1], 2, *t.shape[axis + 1 :]]
    return t.unsqueeze(axis + 1).expand(shape).flatten(axis, axis + 1)


def index_of_channels(t: Tensor) -> Tensor:
    return t.index_select(1, torch.arange(t.shape[1]).flip(0))


def index_select(t: Tensor, axes: Axes) -> Tensor:
    return t.index_select(axes.outer, torch.tensor([2, 0, 1]))


def advanced_index(t: Tensor, axes: Axes) -> Tensor:
    """Index a spatial axis with a list: ``t[:, :, [0, 2, 1, -1]]``."""
    return t[(*[slice(None)] * axes.outer, [0, 2, 1, -1])]


#: The name of an operation -> its function.
OPERATIONS: dict[str, Operation] = {
    "nothing": lambda t, axes: t,
    # Orders of elements.
    "flip_channels": lambda t, axes: t.flip(axes.channel),
    "flip_columns": lambda t, axes: t.flip(axes.inner),
    "flip_all_axes": lambda t, axes: t.flip(axes.spatial),
    "roll_channels": lambda t, axes: t.roll(1, axes.channel),
    "roll_columns": lambda t, axes: t.roll(-2, axes.inner),
    "roll_two_axes": lambda t, axes: t.roll((1, -1), (axes.outer, axes.channel)),
    "transpose": swapped_axes,
    "permute": permuted,
    "movedim": moved,
    "rotate_batch": rotated_batch,
    # Slices.
    "slice_rows": lambda t, axes: t[sliced(axes.outer, 2, 10)],
    "slice_columns_to_the_last": inner_slice,
    "slice_with_negative_ends": lambda t, axes: t[sliced(axes.outer, -5, -1)],
    "slice_with_step": lambda t, axes: t[sliced(axes.inner, None, None, 2)],
    "slice_with_start_and_step": lambda t, axes: t[sliced(axes.outer, 1, -1, 2)],
    "slice_channels": slice_of_channels,
    "slices_of_channels_stacked": channel_slices_stacked,
    "assign_to_slice": assigned,
    "narrow": lambda t, axes: t.narrow(axes.inner, 1, t.shape[axes.inner] - 2),
    "chunk": lambda t, axes: swapped_halves(t.chunk(2, axes.channel), axes.channel),
    "split": lambda t, axes: swapped_halves(t.split(1, axes.channel), axes.channel),
    "split_with_sizes": lambda t, axes: swapped_halves(
        torch.cat((t, t), axes.channel).split(
            [1, t.shape[axes.channel] - 1, t.shape[axes.channel]], axes.channel
        )[:2],
        axes.channel,
    ),
    "unbind_and_stack": unbound_and_stacked,
    # Indices.
    "index_channels_by_list": lambda t, axes: indexed_by_list(t, axes, axes.channel),
    "index_rows_by_list": advanced_index,
    "index_select_rows": index_select,
    "index_select_channels": planar(index_of_channels),
    "gather": gathered,
    "sort": sorted_positions,
    "topk": lambda t, axes: t.topk(3, axes.inner).values,
    "topk_of_positions": topk_of_positions,
    "one_hot": one_hot,
    "liif": liif,
    # Larger tensors.
    "cat": cat_flipped,
    "cat_zeros": cat_zeros,
    "pad_constant": planar(partial(padded, mode="constant", value=0.5)),
    "pad_reflect": planar(partial(padded, mode="reflect")),
    "pad_replicate": planar(partial(padded, mode="replicate")),
    "pad_circular": planar(partial(padded, mode="circular")),
    "pad_last_axes": padded_last_axes,
    "pad_by_negative": planar(lambda t: F.pad(t, (-1, 1, *[0, 0] * (t.ndim - 3)))),
    "repeat": repeated,
    "repeat_interleave": lambda t, axes: t.repeat_interleave(2, dim=axes.outer),
    "expand": expanded,
    "expand_constant": expanded_constant,
    "expand_and_flatten": tiled,
    "reshape": reshaped,
    "unsqueeze_and_squeeze": lambda t, axes: (t.unsqueeze(2) * 0.5).squeeze(2),
    # Other sizes.
    "interpolate_nearest": planar(partial(resized, mode="nearest", scale_factor=2.0)),
    "interpolate_linear": planar(partial(resized, mode="linear", scale_factor=0.5)),
    "interpolate_aligned": planar(
        partial(resized, mode="linear", scale_factor=2.0, align_corners=True)
    ),
    "interpolate_bicubic": planar(partial(resized, mode="bicubic", scale_factor=1.5)),
    "interpolate_to_half": planar(resized_to_half),
    "avg_pool": planar(partial(pooled, kind="avg", kernel_size=2)),
    "max_pool": planar(partial(pooled, kind="max", kernel_size=3, stride=1, padding=1)),
    "adaptive_avg_pool": planar(lambda t: t - 0.2 * pooled(t, "adaptive_avg", output_size=1)),
    "convolution": planar(convolved),
    "unfold": planar(unfolded_columns),
    "windows": lambda t, axes: t.unfold(axes.outer, 3, 1).mean(-1),
    # Elements.
    "where": chosen_by_mask,
    "clamp": lambda t, axes: t.clamp(-0.5, 0.75),
    "clamp_min": lambda t, axes: t.clamp(min=0.1),
    "nan_to_num": nan_to_num,
    "masked_fill": masked,
    "remainder": wrapped,
    "polar": polar,
    "float64": in_float64,
    "sigmoid": lambda t, axes: t.sigmoid() * 2 - 1,
    "einsum": mixed("...c,cd->...d"),
    "matmul": multiplied,
    "layer_norm": normalised_layers,
    "softmax": lambda t, axes: t.softmax(axes.inner) * 2 - 0.5,
    "normalize": lambda t, axes: F.normalize(t + 1.5, dim=axes.channel),
    "cumsum": cumulated,
    "cumsum_of_mask": counted_pixels,
    # Positions.
    "meshgrid": plus_meshgrid,
    "linspace": plus_linspace,
    "arange": plus_arange,
    "normalise_by_size": normalised_by_size,
    "valid_ratio": valid_ratio,
}
