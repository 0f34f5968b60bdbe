"""Runs methods of an ExecuTorch program on QNN's emulator; in an environment of its own, see :mod:`.programs`.

    python run_program.py PROGRAM LIBRARIES INPUTS.npz OUTPUTS.npz METHOD...

LIBRARIES is the folder of onnxruntime-qnn's libraries. Inputs are named `<method>/<place>`, and outputs, too; one of a
method without inputs is a number.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

_CUSTOM, _CREATE_DEVICE = 0, 40
_PAGE = 4096


class _Interface(ctypes.Structure):
    _fields_ = (
        ("backend_id", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("versions", ctypes.c_uint32 * 6),
        ("functions", ctypes.c_void_p * (1 + _CREATE_DEVICE)),
    )


class _Config(ctypes.Structure):
    _fields_ = (("option", ctypes.c_uint32), ("value", ctypes.c_void_p))


_Configs = ctypes.POINTER(ctypes.POINTER(_Config))
_CreateDevice = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, _Configs, ctypes.c_void_p)


def move_union(libraries: Path) -> list[object]:
    """Have QNN see a device's configuration as QAIRT 2.51 reads it: with its union at byte 8.

    ExecuTorch 1.5.1 was built with an older header, which has it at byte 4. Returns what has to be kept.
    """
    library = ctypes.CDLL(str(libraries / "libQnnHtp.so"))
    providers = ctypes.POINTER(ctypes.POINTER(_Interface))()
    count = ctypes.c_uint32()
    assert library.QnnInterface_getProviders(ctypes.byref(providers), ctypes.byref(count)) == 0
    interface = providers[0].contents
    create = _CreateDevice(interface.functions[_CREATE_DEVICE])
    kept: list[object] = [library, create]

    def created(log: int, configs: Any, device: int) -> int:
        place = 0
        while configs and configs[place]:
            config = configs[place].contents
            if config.option == _CUSTOM:
                old = ctypes.string_at(config.value, 16)
                new = ctypes.create_string_buffer(old[:4] + bytes(4) + old[4:])
                kept.append(new)
                config.value = ctypes.addressof(new)
            place += 1
        return int(create(log, configs, device))

    replaced = _CreateDevice(created)
    kept.append(replaced)
    at = ctypes.addressof(interface) + _Interface.functions.offset + 8 * _CREATE_DEVICE
    mprotect = ctypes.CDLL(None).mprotect
    assert mprotect(ctypes.c_void_p(at // _PAGE * _PAGE), ctypes.c_size_t(2 * _PAGE), 3) == 0
    ctypes.c_void_p.from_address(at).value = ctypes.cast(replaced, ctypes.c_void_p).value
    return kept


def main(program: str, libraries: str, inputs: str, outputs: str, *methods: str) -> None:
    """Run the methods and leave what they return."""
    import torch
    from executorch.runtime import Runtime

    kept = move_union(Path(libraries))  # after ExecuTorch, which ends the process if QNN is there before it
    loaded = Runtime.get().load_program(Path(program))
    made: dict[str, Any] = {}
    with np.load(inputs) as arrays:
        for name in methods:
            feed: list[Any] = []
            while (key := f"{name}/{len(feed)}") in arrays:
                feed.append(torch.from_numpy(arrays[key]))
            for place, value in enumerate(loaded.load_method(name).execute(feed)):
                made[f"{name}/{place}"] = value.numpy() if isinstance(value, torch.Tensor) else np.float64(value)
    np.savez(outputs, **made, allow_pickle=False)
    print(f"ran {len(made)}", flush=True)
    del kept
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
