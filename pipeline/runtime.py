"""The name of :mod:`pipeline.qnn_release` before 1.0, for applications that still import it: the same modules."""

from __future__ import annotations

import importlib
import pkgutil
import sys

from pipeline import qnn_release

_WITH_ONNXRUNTIME = ("provider", "serve", "__main__")
for _each in pkgutil.iter_modules(qnn_release.__path__):
    if _each.name not in _WITH_ONNXRUNTIME:
        sys.modules[f"{__name__}.{_each.name}"] = importlib.import_module(f"{qnn_release.__name__}.{_each.name}")
sys.modules[__name__] = qnn_release
