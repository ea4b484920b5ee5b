"""A model's tensors by their names in a Hugging Face folder, each at its final place and dtype.

`FolderTensors` reads files: they are memory-mapped and every tensor is copied at most once; one
that already has the right dtype and device is used where it lies. A folder that is damaged or
incomplete is refused with the file or the tensor that is wrong.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tinkex.engine.errors import ModelError
from tinkex.engine.finite import all_finite, count_unfinite, trace
from tinkex.engine.model import mxfp4
from tinkex.engine.model.headers import INDEX, SINGLE, check_index, read_header, read_index
from tinkex.engine.model.matrices.packed_experts import ExpertStack, PackedExperts


class Tensors(ABC):
    """What a family asks for when it builds its blocks. Modules are named without `.weight`."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self.keeps_packed = False
        """Whether experts in MXFP4 stay so."""
        self._traces: list[Tensor] = []
        """Of all that was read: whether its numbers are finite, known to the device."""

    @abstractmethod
    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor of this name and shape as it is stored."""

    @abstractmethod
    def bytes(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor of bytes of this name and shape."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name."""

    def exact(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """In float32, whatever the model's dtype."""
        return self._placed(self._looked_at(name, shape).to(self.device, torch.float32))

    def matrix(self, module: str, rows: int, columns: int) -> Tensor:
        return self._place(self._looked_at(f"{module}.weight", (rows, columns)))

    def norm(self, module: str, size: int, one_plus: bool = False) -> Tensor:
        """A norm's scale; one plus what is stored keeps its digits in float32."""
        if one_plus:
            return 1.0 + self.exact(f"{module}.weight", (size,))
        return self.vector(f"{module}.weight", size)

    def vector(self, name: str, size: int) -> Tensor:
        return self._place(self._looked_at(name, (size,)))

    def stacked(self, modules: Sequence[str], sizes: Sequence[int], columns: int) -> Tensor:
        """Matrices of one width, one below the other."""
        fused = torch.empty(sum(sizes), columns, dtype=self.dtype, device=self.device)
        for module, part in zip(modules, fused.split_with_sizes(list(sizes)), strict=True):
            part.copy_(self._looked_at(f"{module}.weight", tuple(part.shape)))
        return self._placed(fused)

    def experts(
        self, name: str, fused: str, parts: Sequence[str], own: range, rows: int, columns: int
    ) -> Tensor:
        """[own experts, parts · rows, columns]: stored as one tensor, or as matrices by expert."""
        shape = (len(own), len(parts) * rows, columns)
        if self.has(f"{name}.experts.{fused}"):
            return self._place(self._looked_at(f"{name}.experts.{fused}", shape))
        stack = torch.empty(shape, dtype=self.dtype, device=self.device)
        for expert, matrix in zip(own, stack, strict=True):
            for part, target in zip(parts, matrix.split(rows), strict=True):
                module = f"{name}.experts.{expert}.{part}.weight"
                target.copy_(self._looked_at(module, (rows, columns)))
        return self._placed(stack)

    def packed_experts(self, name: str, count: int, rows: int, columns: int) -> ExpertStack:
        """[count, rows, columns] as gpt-oss stores it: in MXFP4, or widened and transposed."""
        if self.has(name):
            return self._place(self._looked_at(name, (count, columns, rows)).mT).contiguous()
        if columns % mxfp4.BLOCK:
            raise ModelError(f"tensor {name!r}: rows of {columns} are no whole MXFP4 blocks")
        groups = columns // mxfp4.BLOCK
        blocks = self.bytes(f"{name}_blocks", (count, rows, groups, mxfp4.BLOCK // 2))
        scales = self.bytes(f"{name}_scales", (count, rows, groups))
        if (largest := int(scales.max())) > mxfp4.MOST:
            raise ModelError(
                f"tensor '{name}_scales' holds a scale of {largest}, at most {mxfp4.MOST} makes "
                "numbers: the file is damaged or no MXFP4"
            )
        packed = PackedExperts(blocks.to(self.device), scales.to(self.device), self.dtype)
        return packed if self.keeps_packed else packed.widened()

    def biases(self, modules: Sequence[str], sizes: Sequence[int]) -> Tensor:
        parts = [self.vector(f"{m}.bias", size) for m, size in zip(modules, sizes, strict=True)]
        return torch.cat(parts)

    def placed(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self._place(self._looked_at(name, shape))

    def _place(self, tensor: Tensor) -> Tensor:
        return self._placed(tensor.to(device=self.device, dtype=self.dtype))

    def _looked_at(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """As stored. On the host a tensor is looked at here, where it takes the fewest bytes; on
        a device after it was copied there."""
        stored = self.read(name, shape)
        if self.device.type == "cpu":
            lossy = stored.element_size() > self.dtype.itemsize
            self._traces.append(trace(stored.to(self.dtype) if lossy else stored))
        return stored

    def _placed(self, tensor: Tensor) -> Tensor:
        if self.device.type != "cpu":
            self._traces.append(trace(tensor))
        return tensor


class FolderTensors(Tensors):
    """Takes tensors by name from a folder's safetensors files."""

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(device, dtype)
        self._folder = folder
        self._files = open_files(folder)
        self._unread = set(self._files)

    def has(self, name: str) -> bool:
        return name in self._files

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._cut(name, self._stored(name), shape)
        if tuple(tensor.shape) != shape or not tensor.is_floating_point():
            raise ModelError(
                f"tensor {name!r} is {tensor.dtype} of shape {tuple(tensor.shape)}; "
                f"config.json asks for a floating-point one of shape {shape}"
            )
        return tensor

    def bytes(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._cut(name, self._stored(name), shape)
        if tuple(tensor.shape) != shape or tensor.dtype != torch.uint8:
            raise ModelError(
                f"tensor {name!r} is {tensor.dtype} of shape {tuple(tensor.shape)}; "
                f"config.json asks for bytes of shape {shape}"
            )
        return tensor

    def _cut(self, name: str, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The part of a stored tensor that is asked for: all of it."""
        return tensor

    def _stored(self, name: str) -> Tensor:
        if name not in self._files:
            raise ModelError(
                f"the model folder is incomplete: tensor {name!r} is in none of its files"
            )
        self._unread.discard(name)
        try:
            tensor: Tensor = self._files[name].get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"tensor {name!r} cannot be read: {error}") from None
        return tensor

    def refuse_leftovers(
        self, family: str, endings: tuple[str, ...], beginnings: tuple[str, ...]
    ) -> None:
        """A tensor nobody reads means that the maths of this folder is not ours, unless its name
        ends or begins with one of these."""
        left = sorted(
            name
            for name in self._unread
            if not name.endswith(endings) and not name.startswith(beginnings)
        )
        if left:
            raise ModelError(
                f"the model folder holds {len(left)} tensors that {family!r} does not "
                f"use, first {left[0]!r}: its config.json does not describe its weights"
            )

    def refuse_untied(self, embedding: str, unembedding: str) -> None:
        """Two tensors where the configuration says one: libraries differ in which they compute
        with, so whose logprobs are right depends on who trained the model."""
        if unembedding not in self._files:
            return
        one, other = self._stored(embedding), self._stored(unembedding)
        if one.shape != other.shape or not torch.equal(one, other.to(one.dtype)):
            raise ModelError(
                f"config.json: tie_word_embeddings is true, but tensor {unembedding!r} differs "
                f"from {embedding!r}: set it to false if the model has both, or remove that one"
            )

    def refuse_unfinite(self) -> None:
        """NaN and infinity among what was read: every logprob would be NaN, for everybody."""
        if all_finite(self._traces):
            return
        files = read_index(self._folder) if (self._folder / INDEX).exists() else {}
        for name in sorted(set(self._files) - self._unread):
            stored: Tensor = self._files[name].get_tensor(name)
            if not stored.is_floating_point():
                continue
            if count := count_unfinite(stored.to(self.dtype)):
                raise ModelError(
                    f"tensor {name!r} in {files.get(name, SINGLE)} holds {count} numbers of "
                    f"{stored.numel()} that are NaN, infinite or beyond {self.dtype}: download "
                    "that file again, or take weights from before their training diverged"
                )
        raise ModelError("the model folder's weights make numbers that are NaN or infinite")


def open_files(folder: Path) -> dict[str, Any]:
    """Which open file of a model folder holds which tensor."""
    if not (folder / INDEX).exists():
        handle = _open(folder / SINGLE)
        return dict.fromkeys(handle.keys(), handle)
    shards = read_index(folder)
    handles = {name: _open(folder / name) for name in sorted(set(shards.values()))}
    check_index(shards, {name: set(handle.keys()) for name, handle in handles.items()})
    return {tensor: handles[name] for tensor, name in shards.items()}


def _open(path: Path) -> Any:
    read_header(path)
    try:
        return safe_open(str(path), framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path.name} is damaged or cut short: {error}") from None
