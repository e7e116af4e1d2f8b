"""Sparse tensors: how many entries a result has is decided by the indices, which are integers and therefore known."""

from __future__ import annotations

from .conftest import Run

OPERATORS = """
import sys
import warnings
import torch

warnings.filterwarnings("ignore")
torch.manual_seed(0)
device = sys.argv[1]

def entries(rows, columns, count):
    indices = torch.stack([torch.randint(0, rows, (count,)), torch.randint(0, columns, (count,))])
    return torch.sparse_coo_tensor(indices, torch.ones(count), (rows, columns))

def show(name, tensor):
    if tensor.layout is torch.strided:
        print(name, tuple(tensor.shape))
    else:
        indices = tensor._indices() if tensor.is_sparse else tensor.col_indices()
        print(name, str(tensor.layout), tuple(tensor.shape), tensor._nnz(), int(indices.sum()))

raw, other, right = entries(40, 30, 100), entries(40, 30, 80).coalesce(), entries(30, 50, 100).coalesce()
left = raw.coalesce()
csr, csr_other, csr_right = (each.to_sparse_csr().to(device) for each in (left, other, right))
raw, left, other, right = (each.to(device) for each in (raw, left, other, right))
dense = torch.ones(30, 4).to(device)
few = torch.eye(6).to(device)
blocks = torch.eye(8).to_sparse_bsr((2, 2)).to(device)
triangle = torch.eye(8).to_sparse_csr().to(device)
columns = torch.ones(8, 3).to(device)

show("without a size", torch.sparse_coo_tensor(raw._indices(), raw._values()))
show("coalesced", raw.coalesce())
show("product", torch.sparse.mm(left, right))
show("product of what is not coalesced", torch.sparse.mm(raw, right))
show("product of products", torch.sparse.mm(torch.sparse.mm(left, right), right.t().coalesce()))
show("sum", (left + other).coalesce())
show("transposed", left.t().coalesce())
show("rows", left.index_select(0, torch.tensor([1, 2, 3]).to(device)))
show("summed", torch.sparse.sum(left, dim=0))
show("from dense", few.to_sparse())
show("from dense", few.to_sparse_csr())
show("CSR product", csr @ csr_right)
show("CSR sum", csr + csr_other)
show("CSR from COO", left.to_sparse_csr())
show("COO from CSR", csr.to_sparse_coo())
show("CSR times dense", csr @ dense)
show("sampled", torch.sparse.sampled_addmm(csr, torch.ones(40, 7).to(device), torch.ones(7, 30).to(device)))
for name, matrix in (("CSR", triangle), ("BSR", blocks)):
    show(name + " solve", torch.triangular_solve(columns, matrix, upper=False)[0])
    show(name + " solve", torch.triangular_solve(columns[:, :1], matrix, upper=False)[0])
    show(name + " times vector", matrix @ columns[:, 0])
    show(name + " times matrix", matrix @ columns)

left, right = left.clone().requires_grad_(), right.clone().requires_grad_()
torch.sparse.sum(torch.sparse.mm(left, right)).backward()
print("gradients", left.grad._nnz(), right.grad._nnz())
embedding = torch.nn.Embedding(50, 4, sparse=True).to(device)
optimizer = torch.optim.SparseAdam(embedding.parameters())
embedding(torch.tensor([1, 2, 2, 7, 7, 7]).to(device)).sum().backward()
show("embedding", embedding.weight.grad)
show("embedding", embedding.weight.grad.coalesce())
optimizer.step()
"""


def test_sparse_results_have_the_entries_they_have_on_a_cpu(capture: Run) -> None:
    expected = capture(OPERATORS, "cpu", hooks=False).check().said
    captured = capture(OPERATORS, "cuda", steps="all").check()
    assert captured.said == expected
    assert len(expected) > 25
    assert not [line for line in captured.lines("unknown_read") if "decides a size" in line["what"]]


def test_entries_of_unknown_indices_follow_what_is_assumed_and_are_noted(capture: Run) -> None:
    script = """
        import torch
        noise = torch.randn(100, 2000, device="cuda")  # too many floats to be known
        indices = (noise[:2] * 1000).long().abs()
        matrix = torch.sparse_coo_tensor(indices, torch.ones(2000, device="cuda"), (9000, 9000))
        print(matrix.coalesce()._nnz())
    """
    for assume, count in (("typical", "1000"), ("high", "2000")):
        captured = capture(script, assume=assume).check()
        assert captured.said == [count]
        assert any("decides a size" in line["what"] for line in captured.lines("unknown_read"))
