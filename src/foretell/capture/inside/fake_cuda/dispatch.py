"""What runs when torch calls an operator on the device `cuda`.

torch itself decides which operators those are: its dispatcher, autograd, autocast and all operators that are made of
others run as they always do. What ends here, with the key `CUDA`, are those for which CUDA has kernels. Sizes, strides
and types of the results come from torch's own shape functions (the `Meta` device) and are remembered for each
signature; the memory that CUDA's kernels take besides has rules of its own (operators/), one function per operator.
"""

from __future__ import annotations

import re
import warnings
from typing import Any

from .memory import Memory
from .values import Values


class UnknownOperatorError(NotImplementedError):
    pass


def refuse_other_card(index: int | None) -> None:
    """There is one, as a card's driver would say."""
    if index is not None and index > 0:
        raise RuntimeError(f"CUDA error: invalid device ordinal (cuda:{index}; there is one card, cuda:0)")


class Signature:
    """What the schema of an operator says about its results."""

    def __init__(self, operator: Any) -> None:
        schema = operator._schema
        self.returns: list[tuple[str, Any]] = []
        """("new", None), or ("argument", its name) for what was written into, or ("view", ...)."""
        positions = {argument.name: number for number, argument in enumerate(schema.arguments)}
        self.written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        self.positions = positions
        by_alias = {}
        for argument in schema.arguments:
            if argument.alias_info is not None:
                for name in argument.alias_info.before_set:
                    by_alias[name] = argument.name
        self.tensors = [n for n, a in enumerate(schema.arguments) if str(a.type) in ("Tensor", "Optional[Tensor]")]
        self.is_view = False
        for result in schema.returns:
            alias = result.alias_info
            if alias is None:
                self.returns.append(("new", None))
            elif alias.is_write:
                self.returns.append(("argument", by_alias[next(iter(alias.before_set))]))
            else:
                self.is_view = True
        name = schema.name.rsplit("::", 1)[-1]
        self.may_be_on_host = name in _LENGTHS_ON_HOST
        self.is_out = any(a.is_out for a in schema.arguments)
        self.depends_on_floats = name.startswith(("arange", "linspace", "logspace", "range"))
        self.is_empty = name.startswith(("empty", "new_empty"))
        self.overwrites = self.is_out or name in _OVERWRITES
        """What it writes into, it does not read."""

    def argument(self, name: str, args: Any, kwargs: Any) -> Any:
        position = self.positions[name]
        return args[position] if position < len(args) else kwargs.get(name)


_WITHOUT_RULE = re.compile(
    r"(?!aten::)|aten::(_?linalg_(?!vector_norm)|_fft|cholesky|lu_|triangular_solve|ormqr|topk|median|_embedding_bag|"
    r"scatter_reduce|index_reduce|native_group_norm|_grouped_mm|_scaled_mm)"
)
"""Of the virtual GPU it is known that their kernels take more than their results; of other packages' nothing is."""
_KERNELS_OF_CUDA = {"aten::mish_backward"}
"""Without CUDA they are made of others."""
_NOT_KERNELS = ("c10d::", "_c10d_functional", "symm_mem::", "fsdp::")
"""Between ranks: a process group answers them."""
_NOT_THERE = ("SparseCUDA", "SparseCsrCUDA", "QuantizedCUDA", "NestedTensorCUDA")
_LENGTHS_ON_HOST = {"_ctc_loss", "_ctc_loss_backward"}
_OVERWRITES = {
    "zero_", "fill_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "cauchy_", "log_normal_",
    "geometric_", "_foreach_zero_",
}  # fmt: skip


class Dispatch:
    def __init__(self, torch: Any, memory: Memory, values: Values, refuse: Any) -> None:
        self.torch = torch
        self.refuse = refuse
        self.memory = memory
        self.values = values
        self.functions: dict[Any, Any] = {}
        """By operator: what is made of other operators, or sees to values by itself."""
        self.kernels: dict[Any, Any] = {}
        """By operator: makes the results where the general way would make them otherwise."""
        self.besides: dict[Any, Any] = {}
        """By operator: takes what CUDA takes, once the results are made, and lets go of it."""
        self.without_rule: dict[Any, int] = {}
        """How often those were called whose kernels take something besides that nobody wrote down."""
        self._signatures: dict[Any, Signature] = {}
        self._shapes: dict[Any, Any] = {}
        self._on_cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
        self._libraries: dict[tuple[str, str], Any] = {}
        self._tensor = torch.Tensor

    # ---- what torch calls --------------------------------------------------------------------------------------------

    def __call__(self, operator: Any, *args: Any, **kwargs: Any) -> Any:
        where = self.memory.where
        outer = where.operator
        if outer is None:
            where.operator = operator
        try:
            function = self.functions.get(operator)
            if function is not None:
                return function(*args, **kwargs)
            kernel = self.kernels.get(operator)
            if kernel is None:
                return self.general(operator, args, kwargs)
            result = kernel(*args, **kwargs)
            self.memory.allocator.launch()
            if self.memory.host or self.values.keeps_all:
                tensors = list(self._flat((args, tuple(kwargs.values()))))
                results = list(result) if isinstance(result, (tuple, list)) else [result]
                self._settle(operator, self._signature(operator), args, kwargs, tensors, results)
            return result
        except UnknownOperatorError:
            self.refuse(str(operator))
            raise
        finally:
            where.operator = outer

    def _not_there(self, operator: Any) -> Any:
        self.refuse(f"{operator} on sparse or quantized tensors")
        raise UnknownOperatorError(f"{operator} on sparse or quantized tensors")

    def composite(self, operator: Any, *args: Any, **kwargs: Any) -> Any:
        """torch's own function that is made of other operators, for any device: it stands in the place of the CPU."""
        return operator.redispatch(self._on_cpu, *args, **kwargs)

    def general(self, operator: Any, args: Any, kwargs: Any) -> Any:
        signature = self._signature(operator)
        if signature.is_view:
            return operator.redispatch(self._on_cpu, *args, **kwargs)
        tensors: list[Any] = []
        key = (operator, *[self._key(value, tensors, signature) for value in args])
        if kwargs:
            key = (*key, *[(name, self._key(value, tensors, signature)) for name, value in kwargs.items()])
        shapes = self._shapes.get(key)
        if operator in self.without_rule:
            self.without_rule[operator] += 1
        if shapes is None:
            if _WITHOUT_RULE.match(operator._schema.name):
                self.without_rule.setdefault(operator, 1)
            shapes = self._shapes[key] = self._infer(operator, signature, args, kwargs)
        made, resized = shapes
        for name, size, stride in resized:
            self.resize(signature.argument(name, args, kwargs), size, stride)
        results = self._make(made, signature, args, kwargs)
        besides = self.besides.get(operator)
        if besides is not None:
            besides(*args, **kwargs)
        self.memory.allocator.launch()
        self._settle(operator, signature, args, kwargs, tensors, results)
        if len(results) == 1 and len(signature.returns) == 1:
            return results[0]
        return tuple(results) if signature.returns else None

    def _signature(self, operator: Any) -> Signature:
        signature = self._signatures.get(operator)
        if signature is None:
            signature = self._signatures[operator] = Signature(operator)
        return signature

    # ---- shapes ------------------------------------------------------------------------------------------------------

    def _key(self, value: Any, tensors: list[Any], signature: Signature) -> Any:
        if isinstance(value, self._tensor):
            tensors.append(value)
            if value.is_cuda:
                return (value.size(), value.stride(), value.dtype)
            if value.dim() == 0:
                return ("number", self.torch.result_type(tensors[0], value), value.dtype)
            return ("host", value.size(), value.dtype)
        if type(value) is float:
            return value if signature.depends_on_floats else "float"
        if isinstance(value, (list, tuple)):
            return tuple([self._key(each, tensors, signature) for each in value])
        if isinstance(value, self.torch.Generator):
            return None
        if isinstance(value, self.torch.device):
            refuse_other_card(value.index)
        return (type(value), value)

    def _infer(self, operator: Any, signature: Signature, args: Any, kwargs: Any) -> Any:
        """The results as (size, stride, type), and the arguments that get another size."""
        args = self.without_numbers(signature, args)
        meta: dict[int, Any] = {}

        def to_meta(value: Any) -> Any:
            if isinstance(value, self._tensor):
                if not value.is_cuda and value.dim() == 0 and keeps_numbers:
                    return value  # a number, which has weaker rules for types
                if value.device.type == "cpu" and value.dim() and not signature.may_be_on_host:
                    raise RuntimeError(
                        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
                    )
                if id(value) not in meta:
                    meta[id(value)] = self.torch.empty_strided(
                        value.size(), value.stride(), dtype=value.dtype, device="meta"
                    )
                return meta[id(value)]
            if isinstance(value, self.torch.device):
                return self.torch.device("meta")
            if isinstance(value, (list, tuple)):
                return type(value)(to_meta(each) for each in value)
            if isinstance(value, self.torch.Generator):
                return None
            return value

        keeps_numbers = True
        try:
            meta_args = [to_meta(value) for value in args]
            meta_kwargs = {name: to_meta(value) for name, value in kwargs.items()}
            result = self._run_on_meta(operator, meta_args, meta_kwargs)
        except RuntimeError:
            if not any(isinstance(each, self._tensor) and not each.is_cuda and not each.dim() for each in args):
                raise
            keeps_numbers = False  # some shape functions want all tensors on one device
            meta_args = [to_meta(value) for value in args]
            meta_kwargs = {name: to_meta(value) for name, value in kwargs.items()}
            result = self._run_on_meta(operator, meta_args, meta_kwargs)
        results = list(result) if isinstance(result, tuple) and len(signature.returns) > 1 else [result]
        results = results if signature.returns else []
        made = []
        for (kind, _), each in zip(signature.returns, results, strict=True):
            made.append(self._described(each) if kind == "new" else None)
        resized = []
        for name in signature.written:
            before, after = signature.argument(name, args, kwargs), signature.argument(name, meta_args, meta_kwargs)
            if isinstance(before, self._tensor) and before.size() != after.size():
                resized.append((name, tuple(after.size()), tuple(after.stride())))
        return made, resized

    def without_numbers(self, signature: Signature, args: Any) -> Any:
        """A number that stands for a tensor (`x % 2`) comes as a number, which not every operator takes back."""
        numbers = [n for n in signature.tensors if n < len(args) and isinstance(args[n], (int, float, complex))]
        if not numbers:
            return args
        like = next((each for each in args if isinstance(each, self._tensor)), None)
        given = list(args)
        for n in numbers:
            dtype = self.torch.result_type(like, args[n]) if like is not None else None
            given[n] = self.torch.scalar_tensor(args[n], dtype=dtype, device="cpu")
        return given

    def _run_on_meta(self, operator: Any, args: Any, kwargs: Any) -> Any:
        try:
            return operator(*args, **kwargs)
        except NotImplementedError as error:
            decompositions = self.torch._decomp.decomposition_table
            if operator in decompositions:
                return decompositions[operator](*args, **kwargs)
            if self.torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CPU"):
                self.without_rule.setdefault(operator, 1)
                return self._run_on_zeros(operator, args, kwargs)
            raise UnknownOperatorError(f"{operator}: {error}") from None
        except RuntimeError as error:
            if "data-dependent" in str(error):  # the message of operators that other packages register
                raise UnknownOperatorError(f"{operator}: {error}") from None
            raise

    def _run_on_zeros(self, operator: Any, args: Any, kwargs: Any) -> Any:
        """The few operators without a shape function: the shapes that the CPU's kernel gives."""
        hosts: dict[int, Any] = {}

        def to_host(value: Any) -> Any:
            if isinstance(value, self._tensor) and value.device.type == "meta":
                if id(value) not in hosts:
                    made = self.torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="cpu")
                    hosts[id(value)] = made.zero_()
                return hosts[id(value)]
            if isinstance(value, self.torch.device):
                return self.torch.device("cpu")
            if isinstance(value, (list, tuple)):
                return type(value)(to_host(each) for each in value)
            return value

        try:
            return operator(*map(to_host, args), **{name: to_host(value) for name, value in kwargs.items()})
        except Exception as error:
            raise UnknownOperatorError(f"{operator}: {error}") from None

    def _described(self, value: Any) -> Any:
        if isinstance(value, self._tensor):
            return (tuple(value.size()), tuple(value.stride()), value.dtype)
        if isinstance(value, (list, tuple)):
            return [self._described(each) for each in value]
        return value

    # ---- results -----------------------------------------------------------------------------------------------------

    def _make(self, made: Any, signature: Signature, args: Any, kwargs: Any) -> list[Any]:
        results = []
        for (kind, name), described in zip(signature.returns, made, strict=True):
            results.append(self._made(described) if kind == "new" else signature.argument(name, args, kwargs))
        return results

    def _made(self, described: Any) -> Any:
        if type(described) is tuple:
            return self.memory.empty(*described)
        if type(described) is list:
            return [self._made(each) for each in described]
        return described

    def resize(self, tensor: Any, size: Any, stride: Any) -> None:
        """Another storage if the one it has is too small, as CUDA's own resize does it: the new one comes first."""
        last = sum((extent - 1) * step for extent, step in zip(size, stride, strict=True)) if 0 not in size else -1
        needed = (tensor.storage_offset() + last + 1) * tensor.dtype.itemsize
        storage = tensor.untyped_storage()
        offset = tensor.storage_offset()
        if needed > storage.nbytes():
            storage = self.memory.empty((needed,), (1,), self.torch.uint8).untyped_storage()
        self.torch.ops.aten.set_.source_Storage_storage_offset.redispatch(
            self._on_cpu, tensor, storage, offset, list(size), list(stride)
        )

    # ---- values ------------------------------------------------------------------------------------------------------

    def _settle(
        self, operator: Any, signature: Signature, args: Any, kwargs: Any, tensors: list[Any], results: list[Any]
    ) -> None:
        values = self.values
        if tensors and not self.memory.host and not values.keeps_all and not signature.overwrites:
            return
        written = [signature.argument(name, args, kwargs) for name in signature.written]
        written = [each for value in written for each in (value if isinstance(value, (list, tuple)) else (value,))]
        written = [each for each in written if isinstance(each, self._tensor)]
        read = tensors
        if signature.overwrites:
            identities = {id(each) for each in written}
            read = [each for each in tensors if id(each) not in identities]
        is_known = all(not each.is_cuda or values.is_known(each) for each in read)
        outs = written
        if is_known and not written:
            outs = list(self._flat(results))
            is_known = bool(outs) and (bool(read) or signature.depends_on_floats) and not signature.is_empty
        if is_known and all(values.may_be_known(each) for each in outs):
            is_known = values.repeat(
                operator, self.without_numbers(signature, args), kwargs, outs, is_in_place=bool(written)
            )
        else:
            is_known = False
        if not is_known:
            for each in written:
                if each.is_cuda:
                    values.forget(each)

    def _flat(self, results: Any) -> Any:
        for each in results:
            if isinstance(each, self._tensor):
                yield each
            elif isinstance(each, (list, tuple)):
                yield from self._flat(each)

    # ---- registering -------------------------------------------------------------------------------------------------

    def install(self) -> None:
        self._library("_", "CUDA").fallback("CUDA", self, False)
        for key in _NOT_THERE:
            self._library("_", key).fallback(key, lambda operator, *args, **kwargs: self._not_there(operator), False)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
            self._register((*self.functions, *self.kernels))
            if self.torch.version.cuda:
                self._replace_cuda_kernels()
            else:
                self._stand_for_structured_kernels()

    def _library(self, namespace: str, key: str) -> Any:
        """Not torch.library.Library: that one is taken away again before Python has ended."""
        made = self._libraries.get((namespace, key))
        if made is None:
            made = self.torch._C._dispatch_library("IMPL", namespace, key, __file__, 0)
            self._libraries[namespace, key] = made
        return made

    def _register(self, operators: Any) -> None:
        """Also where torch has a function made of other operators, which comes before the fallback."""
        has = self.torch._C._dispatch_has_kernel_for_dispatch_key
        for operator in operators:
            name = operator.name()
            keys = ["CUDA"]
            if has(name, "CompositeImplicitAutograd") and not has(name, "Autograd"):
                keys.append("AutogradCUDA")
            for key in keys:
                self._put(operator, name, key, self)

    def _put(self, operator: Any, name: str, key: str, call: Any) -> None:
        namespace, rest = name.split("::")
        self._library(namespace, key).impl(rest, key, lambda *args, **kwargs: call(operator, *args, **kwargs), False)

    def _stand_for_structured_kernels(self) -> None:
        """Without CUDA, an operator that has a kernel for each backend is made of its variant with a given result: an
        allocation by itself, and another operator. With CUDA it is one."""
        has = self.torch._C._dispatch_has_kernel_for_dispatch_key
        registered = {operator.name() for operator in (*self.functions, *self.kernels)}
        for name in self.torch._C._dispatch_get_all_op_names():
            is_structured = has(name, "CompositeExplicitAutogradNonFunctional")
            if name in registered or not (is_structured or name in _KERNELS_OF_CUDA):
                continue
            operator = _overload(self.torch, name)
            if operator is not None:
                self._put(operator, name, "CUDA", self)

    def _replace_cuda_kernels(self) -> None:
        """In a torch with CUDA, the kernels that would ask for a card: each is answered as where there are none."""
        torch = self.torch
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        registered = {operator.name() for operator in (*self.functions, *self.kernels)}
        for name in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"):
            if name in registered or name.startswith(_NOT_KERNELS):
                continue
            operator = _overload(torch, name)
            if operator is None:
                continue
            is_made_of_others = any(
                has(name, key) for key in ("CompositeExplicitAutograd", "CompositeImplicitAutograd")
            )
            is_safe = is_made_of_others and not has(name, "CPU")
            self._put(operator, name, "CUDA", self.composite if is_safe else self)


def _overload(torch: Any, name: str) -> Any:
    namespace, rest = name.split("::")
    packet, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    except (AttributeError, RuntimeError):  # of TorchScript only
        return None
