"""What records are made of: texts, counts and arrays that hold only what can have been measured. Pure: pydantic and numpy.

A file from anywhere may hold records, so what is not possible is refused here, once.
"""

from __future__ import annotations

import base64
import math
import re
import reprlib
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import AfterValidator, FailFast, Field, ValidationError, model_validator

from kernels.problem import Frozen
from profiling.foreign_text import cleaned, printable

Provenance = Literal["measured", "interpreted", "compiled", "modelled"]

MAX_NUMBERS = 1_000_000

Text = Annotated[str, Field(max_length=20_000), AfterValidator(printable)]
Words = Annotated[str, Field(max_length=500), AfterValidator(printable)]
Missing = Annotated[dict[Words, Text], Field(max_length=100)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Limit = Annotated[int, Field(ge=1, lt=2**63)]
Error = Annotated[float, Field(ge=0)]
Ms = Annotated[float, Field(ge=0, le=1e9)]

_shortened = reprlib.Repr()
_shortened.maxstring, _shortened.maxlevel, _shortened.maxdict, _shortened.maxlist = 60, 2, 2, 3


def first_sentence(error: ValidationError) -> str:
    """What a person should read of a pydantic error: the first problem, with its value, without pydantic's prefix."""
    problem = error.errors(include_url=False)[0]
    message = problem["msg"].removeprefix("Value error, ")
    where = ".".join(cleaned(str(part)[:60]) for part in problem["loc"])
    if problem["type"] == "value_error":
        return message
    if problem["type"] == "missing":
        return f"{where} is missing."
    if problem["type"] == "extra_forbidden":
        return f"{where} is not possible: there is no such field."
    message = re.sub(r"^\w+ should", "it should", message).replace(" after validation", "")
    found = _shortened.repr(problem["input"])
    return f"{where} = {found if len(found) <= 80 else found[:79] + '…'} is not possible: {message}."


class Array(Frozen):
    """A numeric array as base64 of its little-endian bytes, with dtype ('<f4', '<f8', '<i8') and shape; all finite."""

    most_numbers: ClassVar[int] = MAX_NUMBERS
    may_hide: ClassVar[bool] = False

    dtype: Literal["<f2", "<f4", "<f8", "<i4", "<i8", "|u1"]
    shape: Annotated[tuple[int, ...], Field(max_length=4), FailFast()]
    data: Annotated[str, Field(max_length=12 * MAX_NUMBERS)]

    @model_validator(mode="after")
    def _whole(self) -> Array:
        if min(self.shape, default=0) < 0 or math.prod(self.shape) > self.most_numbers:
            raise ValueError(
                f"an array of shape {self.shape} is not possible: it can hold {self.most_numbers:,} numbers at most."
            )
        expected = math.prod(self.shape) * np.dtype(self.dtype).itemsize
        try:
            found = base64.b64decode(self.data, validate=True)
        except ValueError as error:
            raise ValueError(f"an array's data is not base64: {error}.") from None
        if len(found) != expected:
            raise ValueError(
                f"an array of shape {self.shape} and dtype {self.dtype} needs {expected} bytes, it has {len(found)}."
            )
        numbers = np.frombuffer(found, dtype=self.dtype)
        if not (np.isfinite(numbers) | (self.may_hide & (numbers == -np.inf))).all():
            raise ValueError("an array with NaN or infinity is not possible: its numbers are finite.")
        return self

    @classmethod
    def of(cls, values: object, dtype: str = "<f8") -> Self:
        """The record of anything numpy can turn into an array."""
        array = np.ascontiguousarray(values, dtype=dtype)
        return cls(dtype=dtype, shape=array.shape, data=base64.b64encode(array.tobytes()).decode())

    def series(self, name: str) -> int:
        """The length, for an array that must have one dimension. Raises ValueError when it has not."""
        if len(self.shape) != 1:
            raise ValueError(f"{name} of shape {self.shape} is not possible: it is one series.")
        return self.shape[0]

    def numpy(self) -> np.ndarray:
        """The array, read-only."""
        return np.frombuffer(base64.b64decode(self.data), dtype=self.dtype).reshape(self.shape)


class Frames(Array):
    """An array of a trace: tile after tile, -inf where a key is hidden or a row has seen nothing."""

    most_numbers: ClassVar[int] = 8 * MAX_NUMBERS
    may_hide: ClassVar[bool] = True
