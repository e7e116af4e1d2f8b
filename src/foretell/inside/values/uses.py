"""What a script does with a value it has read: decide a branch, an index or a size, or nothing (it prints a loss).

Read off the bytecode that follows the read: the value is followed through local variables, attributes, arithmetic,
comparisons and `return`, until it reaches a branch or is handed to another function. What becomes of it there, or in a
list, is not known; it counts as nothing. The alternative, a subclass of float that notices comparisons, would follow it
further, but the script could see it: `type(x) is float`, pickles, YAML.
"""

from __future__ import annotations

import dis
import functools
import os
import sys
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType
from typing import Literal

from .branches import instructions, loops_around

Decides = Literal["a branch", "an index", "a size"]
_PASSES_ON = frozenset({
    "abs", "bool", "exp", "float", "int", "item", "log", "max", "mean", "min", "round", "sqrt", "sum", "tolist", "any",
    "all", "array", "asarray",
})  # fmt: skip
"""What they return depends on the value as the value itself does. Not isfinite, isnan and isinf: unknown numbers are
taken to be finite, as in any run that works."""
_NOT_OF_VALUES = frozenset({
    "data_ptr", "device", "dim", "dtype", "element_size", "get_device", "grad_fn", "is_contiguous", "is_cpu", "is_cuda",
    "is_floating_point", "is_leaf", "is_sparse", "itemsize", "layout", "nbytes", "ndim", "ndimension", "nelement",
    "numel", "requires_grad", "shape", "size", "storage_offset", "stride", "type",
})  # fmt: skip
"""What is known of a tensor, whatever its values."""
_MAKES_SIZES = frozenset({
    "arange", "chunk", "empty", "expand", "full", "islice", "narrow", "new_empty", "new_full", "new_ones", "new_zeros",
    "ones", "pad", "rand", "randint", "randn", "randperm", "range", "repeat", "repeat_interleave", "reshape", "resize_",
    "split", "topk", "view", "zeros",
})  # fmt: skip
_PRINTS = os.path.join("torch", "_tensor_str.py")
_SLICES = ("BINARY_SLICE", "STORE_SLICE")
_MOST_CALLERS = 8


@dataclass(frozen=True, slots=True)
class Comparison:
    operator: str
    """As in Python: `==`, `<`, `not in`, ..."""
    other: str
    """The other side, as an expression of names, attributes, constants and indices."""
    is_reversed: bool
    """The value is on the right."""


@dataclass(frozen=True, slots=True)
class Use:
    decides: Decides | None = None
    frame: FrameType | None = None
    """Of the branch."""
    offset: int = 0
    """Of the instruction that branches."""
    is_negated: bool | None = None
    """Whether the branch asks for `not value`; None: for something computed from it."""
    is_slice: bool = False
    """It is the end of a slice, or its start."""
    comparison: Comparison | None = None
    """What the branch compares the value with, if that can be looked up."""
    divides: bool = False
    """Something is divided by it, or by what is computed from it."""


NOTHING = Use()


def use_of(frame: FrameType) -> Use:
    """For a frame that reads a value in its current instruction."""
    if _is_printing(frame):
        return NOTHING
    is_negated: bool | None = False
    caller: FrameType | None = frame
    for _ in range(_MOST_CALLERS):
        if caller is None:
            break
        found = _follow(caller.f_code, caller.f_lasti)
        if found.decides is not None:
            negations = (is_negated, found.is_negated)
            is_both = None if None in negations else negations[0] != negations[1]
            return Use(found.decides, caller, found.offset, is_both, found.is_slice, found.comparison, found.divides)
        if found.divides:
            return Use(divides=True)
        if not found.is_returned:
            break
        is_negated = None if None in (is_negated, found.is_negated) else is_negated != found.is_negated
        caller = caller.f_back
    return NOTHING


def _is_printing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.endswith(_PRINTS):
            return True
        frame = frame.f_back
    return False


@dataclass(frozen=True, slots=True)
class _Found:
    decides: Decides | None = None
    offset: int = 0
    is_negated: bool | None = None
    is_returned: bool = False
    is_slice: bool = False
    comparison: Comparison | None = None
    divides: bool = False


@dataclass(frozen=True, slots=True)
class _Item:
    """An item of the interpreter's stack."""

    name: str = ""
    """Of a function or variable."""
    is_value: bool = False
    """It is the value that was read, or depends on it."""
    is_negated: bool | None = None
    """False: the value itself, True: its negation, None: something computed from it."""
    text: str = ""
    """An expression for it, if it is not computed, and does not depend on the value."""
    comparison: Comparison | None = None
    """It is the result of this."""


_OTHER = _Item()


@functools.lru_cache(maxsize=1024)
def _follow(code: CodeType, offset: int) -> _Found:
    try:
        # During a call the offset may be that of a cache behind the instruction.
        at = [each for each in instructions(code) if each.offset <= offset][-1]
        scan = _Scan()
        if "SUBSCR" in at.opname or at.opname in _SLICES or at.argrepr == "[]":  # `x[:length]`
            return _Found("a size" if _is_sliced(code, at) else "an index", at.offset, is_slice=_is_sliced(code, at))
        asks_itself = "JUMP" in at.opname or at.opname in ("TO_BOOL", "UNARY_NOT")  # `if tensor:`
        scan.run(code, 0, at.offset if asks_itself else at.offset + 1)
        scan.stack[-1:] = [_Item(is_value=True, is_negated=False)]
        found = scan.run(code, at.offset if asks_itself else at.offset + 1)
        loops = loops_around(code, at.offset)
        if found is None and scan.names and loops:  # in the next round
            scan.stack.clear()
            found = scan.run(code, loops[-1].start)
    except Exception:  # an instruction of a newer Python: better one caveat too many
        return _Found("a branch", -1)
    return replace(found or _Found(), divides=scan.divides)


@dataclass(slots=True)
class _Scan:
    """Goes through the instructions in the order of their offsets, as if no jump were taken."""

    stack: list[_Item] = field(default_factory=list)
    names: dict[str, _Item] = field(default_factory=dict)
    """Variables and attributes that hold the value."""
    divides: bool = False

    def run(self, code: CodeType, start: int, end: int = sys.maxsize) -> _Found | None:
        for each in instructions(code):
            if start <= each.offset < end:
                found = self._step(each)
                if found is not None:
                    return found
                if each.opname in ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE", "RETURN_VALUE", "RAISE_VARARGS"):
                    self.stack.clear()
        return None

    def _step(self, each: dis.Instruction) -> _Found | None:
        name = each.opname
        if "JUMP" in name and "IF_" in name:
            item = self._pop()
            if not item.is_value:
                return None
            return _Found("a branch", each.offset, item.is_negated, comparison=item.comparison)
        if name == "RETURN_VALUE":
            item = self._pop()
            return _Found(is_negated=item.is_negated, is_returned=True) if item.is_value else None
        if name in ("BINARY_SUBSCR", "BINARY_SLICE", "BUILD_SLICE") or (name == "BINARY_OP" and each.argrepr == "[]"):
            return self._index(each)
        if name in ("CALL", "CALL_FUNCTION", "CALL_METHOD", "CALL_KW", "CALL_FUNCTION_KW"):
            return self._call(each)
        self._move(each)
        return None

    def _index(self, each: dis.Instruction) -> _Found | None:
        count = int(each.arg or 2) if each.opname == "BUILD_SLICE" else 3 if each.opname == "BINARY_SLICE" else 2
        items = self._take(count)
        of = items if each.opname == "BUILD_SLICE" else items[1:]
        if any(item.is_value for item in of):
            return _Found("an index", each.offset)
        self._push(items, "{}[{}]" if count == 2 else "")
        return None

    def _call(self, each: dis.Instruction) -> _Found | None:
        count = int(each.arg or 0) + (each.opname in ("CALL_KW", "CALL_FUNCTION_KW"))
        arguments = self._take(count)
        called = self._take(1 if each.opname in ("CALL_FUNCTION", "CALL_FUNCTION_KW") else 2)
        function = next((item.name for item in called if item.name), "")
        is_method_of_value = any(item.is_value for item in called)
        if any(item.is_value for item in arguments) and function in _MAKES_SIZES:
            return _Found("a size", each.offset)
        is_kept = is_method_of_value or (function in _PASSES_ON and any(item.is_value for item in arguments))
        source = next((item for item in (*called, *arguments) if item.is_value), _OTHER)
        is_negated = source.is_negated if function in ("item", "bool") else None
        self.stack.append(_Item(is_value=True, is_negated=is_negated) if is_kept else _OTHER)
        return None

    def _move(self, each: dis.Instruction) -> None:
        name, stack = each.opname, self.stack
        if name.startswith(("LOAD_ATTR", "LOAD_METHOD")):
            owner = self._pop()
            if each.argval in _NOT_OF_VALUES:
                owner = _OTHER
            attribute = self.names.get(f".{each.argval}")
            text = f"{owner.text}.{each.argval}" if owner.text else ""
            item = attribute or (_Item(is_value=True) if owner.is_value else _Item(str(each.argval), text=text))
            is_method = name.startswith("LOAD_METHOD") or (name == "LOAD_ATTR" and _pushes_two(each))
            # A method and its owner, the owner with the name so that a call finds it.
            stack += [_Item(str(each.argval), owner.is_value, owner.is_negated), owner] if is_method else [item]
        elif name.startswith(("LOAD_FAST", "LOAD_NAME", "LOAD_DEREF", "LOAD_GLOBAL", "STORE_FAST", "STORE_NAME",
                              "STORE_DEREF", "STORE_GLOBAL")):  # fmt: skip
            self._variables(each)
        elif name in ("LOAD_CONST", "LOAD_SMALL_INT"):
            stack.append(_Item(text=repr(each.argval) if isinstance(each.argval, int | float | str | tuple) else ""))
        elif name == "STORE_ATTR":
            self._pop()
            self._store(f".{each.argval}", self._pop())
        elif name == "COPY":
            stack.append(stack[-int(each.arg or 1)] if int(each.arg or 1) <= len(stack) else _OTHER)
        elif name == "DUP_TOP":
            stack.append(stack[-1] if stack else _OTHER)
        elif name in ("SWAP", "ROT_TWO"):
            count = int(each.arg or 2)
            items = self._take(count)
            stack += [items[-1], *items[1:-1], items[0]]
        elif name == "UNARY_NOT":
            item = self._pop()
            is_negated = None if item.is_negated is None else not item.is_negated
            stack.append(_Item(is_value=item.is_value, is_negated=is_negated))
        elif name in ("COMPARE_OP", "CONTAINS_OP"):
            self._compare(each)
        elif name.startswith(("BINARY_", "INPLACE_")):
            items = self._take(2)
            self._push(items)
            is_division = each.argrepr.startswith(("/", "%")) or "DIVIDE" in name or "MODULO" in name
            self.divides = self.divides or (is_division and items[1].is_value)
        elif name in ("BUILD_TUPLE", "BUILD_LIST"):
            count = int(each.arg or 0)
            self._push(self._take(count), f"({'{}, ' * count})" if count else "")
        elif name == "UNPACK_SEQUENCE":
            item = self._pop()
            stack += [_Item(is_value=item.is_value)] * int(each.arg or 0)
        elif name == "FOR_ITER":
            stack.append(_Item(is_value=bool(stack) and stack[-1].is_value))
        elif name in ("FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC"):
            self._take(2 if name == "FORMAT_WITH_SPEC" or (each.arg or 0) & 4 else 1)
            stack.append(_OTHER)
        elif name not in ("TO_BOOL", "UNARY_NEGATIVE", "UNARY_POSITIVE", "GET_ITER", "PRECALL", "KW_NAMES"):
            effect = dis.stack_effect(each.opcode, each.arg, jump=False)
            self._take(-effect)
            stack += [_OTHER] * effect

    def _variables(self, each: dis.Instruction) -> None:
        """`LOAD_FAST`; from Python 3.13 on also two of them in one instruction."""
        parts = each.opname.replace("_LOAD", " LOAD").replace("_STORE", " STORE").split()
        names = each.argval if isinstance(each.argval, tuple) else (each.argval,)
        if each.opname.startswith("LOAD_GLOBAL") and _pushes_two(each):
            self.stack.append(_OTHER)
        for part, variable in zip(parts, names, strict=True):
            if part.startswith("STORE"):
                self._store(variable, self._pop())
            else:
                self.stack.append(self.names.get(variable, _Item(str(variable), text=str(variable))))

    def _store(self, name: str, item: _Item) -> None:
        if item.is_value:
            self.names[name] = item
        else:
            self.names.pop(name, None)

    def _pop(self) -> _Item:
        return self.stack.pop() if self.stack else _OTHER

    def _take(self, count: int) -> list[_Item]:
        return [self._pop() for _ in range(max(count, 0))][::-1]

    def _push(self, items: list[_Item], template: str = "") -> None:
        """What was computed from these. `template`: an expression for it, of those for them."""
        is_value = any(item.is_value for item in items)
        texts = [item.text for item in items]
        text = template.format(*texts) if all(texts) and not is_value else ""
        self.stack.append(_Item(is_value=is_value, text=text))

    def _compare(self, each: dis.Instruction) -> None:
        left, right = items = self._take(2)
        self._push(items)
        if left.is_value != right.is_value:
            operator = ("not in" if each.arg else "in") if each.opname == "CONTAINS_OP" else str(each.argval)
            other = right.text or left.text
            comparison = Comparison(operator, other, is_reversed=right.is_value) if other else None
            self.stack[-1] = replace(self.stack[-1], comparison=comparison)


def _is_sliced(code: CodeType, at: dis.Instruction) -> bool:
    before = [each.opname for each in instructions(code) if each.offset < at.offset][-3:]
    return at.opname in _SLICES or "BUILD_SLICE" in before


def _pushes_two(each: dis.Instruction) -> bool:
    """`LOAD_GLOBAL` from Python 3.11 on, and `LOAD_ATTR` from 3.12 on, can put a place for `self` on the stack too."""
    return dis.stack_effect(each.opcode, each.arg) == (2 if each.opname == "LOAD_GLOBAL" else 1)
