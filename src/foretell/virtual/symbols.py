"""Reads the imported and exported functions of a shared library from its ELF file.

`nm -D` would do, but binutils need not be installed; and 64-bit little-endian is the only kind that matters here.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterable
from pathlib import Path

_CUDA = re.compile(r"(?:__)?cuda[A-Z_]|cu[A-Z]|(?:cublas|cudnn|nccl|cufft|cusparse|cusolver|cupti|nvml|curand)[A-Z_L]")
# Left to the NVIDIA libraries installed with torch, which need no card for them: plain descriptors, versions, error
# texts.
_SERVED_BY_THE_REAL_ONES = re.compile(
    r"cudss|cudnn(?:Create|Destroy|Set|Get)(?!.*Backend)\w*(?:Descriptor|Version|Property|ErrorString)\w*"
    r"|cudnnSetConvolution(?:GroupCount|MathType)"
    r"|cusparse(?:GetError(?:String|Name)|Create(?!IdentityPermutation)\w+|Destroy\w+|SetMat\w+|CsrSet\w+|DnMatSet\w+|SpMat\w+"
    r"|SpGEMM_(?:create|destroy)Descr|SpS[MV]_(?:create|destroy)Descr)"
)


def cuda_imports(libraries: Iterable[Path]) -> set[str]:
    """Names of CUDA functions these libraries expect to find elsewhere."""
    wanted: set[str] = set()
    offered: set[str] = set()
    for path in libraries:
        undefined, defined = dynamic_symbols(path)
        wanted |= {name for name in undefined if _CUDA.match(name) and not _SERVED_BY_THE_REAL_ONES.match(name)}
        offered |= {name for name in defined if _CUDA.match(name)}
    return wanted - offered


def dynamic_symbols(path: Path) -> tuple[set[str], set[str]]:
    """(undefined, defined) names of .dynsym; both empty if the file is not 64-bit little-endian ELF."""
    with path.open("rb") as file:
        if file.read(6) != b"\x7fELF\x02\x01":
            return set(), set()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(data)


def _read(data: mmap.mmap) -> tuple[set[str], set[str]]:
    section_offset, section_size, num_sections = (
        struct.unpack_from("<Q", data, 0x28)[0],
        struct.unpack_from("<H", data, 0x3A)[0],
        struct.unpack_from("<H", data, 0x3C)[0],
    )
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, section_offset + i * section_size) for i in range(num_sections)]
    undefined: set[str] = set()
    defined: set[str] = set()
    for _, kind, _, _, offset, size, link, _, _, _ in sections:
        if kind != 11:  # SHT_DYNSYM
            continue
        strings_offset, strings_size = sections[link][4], sections[link][5]
        strings = data[strings_offset : strings_offset + strings_size]
        for name, info, _, section, _, _ in struct.iter_unpack("<IBBHQQ", data[offset : offset + size]):
            # torch's own C++ symbols are mangled and not needed: skip them before decoding.
            if name and strings[name : name + 2] != b"_Z":
                text = strings[name : strings.index(b"\0", name)].decode(errors="replace")
                (undefined if section == 0 and info >> 4 in (1, 2) else defined).add(text)
    return undefined, defined
