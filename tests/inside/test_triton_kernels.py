"""Which tensors a Triton kernel writes is read off its intermediate code."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from foretell.inside.values import triton_kernels

HEAD = "tt.func public @k(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %n: i32 loc(#l), %y: !tt.ptr<i64>) {\n"


def written(body: str) -> list[int] | None:
    found = triton_kernels.written_pointers("module {\n" + HEAD + body)
    assert found is None or found.num_pointers == 2
    return None if found is None else found.indices


def test_a_store_is_followed_to_the_argument_it_goes_to() -> None:
    load = "%1 = tt.splat %x : !tt.ptr<f32> -> tensor<4x!tt.ptr<f32>>\n%2 = tt.load %1 : tensor<4x!tt.ptr<f32>>\n"
    store = "%3 = tt.splat %y : !tt.ptr<i64>\n%4 = tt.addptr %3, %n : tensor\ntt.store %4, %2 : tensor\n"
    assert written(load + store) == [1]
    assert written(load) == []


def test_an_atomic_writes_where_its_first_pointer_is() -> None:
    assert written("%1 = tt.atomic_rmw fadd, acq_rel, gpu, %x, %v, %m : (!tt.ptr<f32>, f32, i1) -> f32\n") == [0]


def test_a_pointer_that_a_loop_carries_is_followed() -> None:
    loop = "%r = scf.for %i = %a to %b step %c iter_args(%p = %y) -> (!tt.ptr<i64>) : i32 {\n"
    assert written(loop + "tt.store %p, %v : !tt.ptr<i64>\n}\n") == [1]


@pytest.mark.parametrize(
    "body",
    [
        "%p = scf.if %c -> (!tt.ptr<f32>) {\n}\ntt.store %p, %v : !tt.ptr<f32>\n",
        "%p = tt.make_tensor_ptr %x, [%n], [%n], [%n] : tensor\ntt.store %p, %v : tensor\n",
        "tt.call @helper(%x) : (!tt.ptr<f32>) -> ()\n",
    ],
)
def test_code_that_is_not_understood_may_write_everything(body: str) -> None:
    assert written(body) is None
    kernel = SimpleNamespace(asm={"ttir": "module {\n" + HEAD + body})
    assert triton_kernels._written_among(kernel, ["x", "y"]) == ["x", "y"]


def test_pointers_that_are_not_the_tensors_given_may_be_any_of_them() -> None:
    kernel = SimpleNamespace(asm={"ttir": HEAD + "tt.store %x, %v : f32\n"})
    assert triton_kernels._written_among(kernel, ["a", "b"]) == ["a"]
    assert triton_kernels._written_among(kernel, ["a", "b", "c"]) == ["a", "b", "c"]
