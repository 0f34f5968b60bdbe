"""QNN's compiler, run so that equal input gives equal bytes, and so that its failures are errors.

Four things are kept fixed. The compiler runs in an empty folder with relative names only: ONNX Runtime derives the
graph's name from the model's path as given, so `<component>_<bucket>.onnx` makes it differ between buckets, which may
then share a binary, and between nothing else. External tensors are handed over as mapped memory instead of paths. A
process compiles once: the second binary of a process differs from the first, for the same input. And it compiles at
addresses that are the same in every process: see :mod:`pipeline.qnn.compiling.compiler_threads`.

Keeps what a compile holds in memory small: what was freed or read goes back to the system at once.

QNN's compiler holds several copies of a model's weights, and at the end, for a moment, as many of the binary. Next to
these our own share is what can be had, and what glibc keeps of what was freed. Of SmolLM2's two contexts (a binary of
210 MB) the process held 2.82 GB without this.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from pipeline.contracts.target import HtpTarget
from pipeline.errors import CompileError, PipelineError
from pipeline.graph.files.model_file import is_external, load_graph, save_graph, tensor_array
from pipeline.graph.files.stored_form import form_of, without_forms
from pipeline.qnn import failures
from pipeline.qnn.compiling import admission, hints
from pipeline.qnn.compiling.compiler_threads import compiler_threads
from pipeline.qnn.compiling.readback import OpTrace, read_trace
from pipeline.qnn.format.context_model import binary_names
from pipeline.qnn.native_log import NativeLog, recorded
from pipeline.qnn.session import session_options
from pipeline.store.durable import no_room

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""glibc's M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_THRESHOLD (mallopt(3)): what may be free at a heap's end before it is
returned, by how much more than is needed a heap grows, and from which size on memory is mapped, and unmapped again.
"""
_FROM_BYTES, _FROM_BYTES_OF_SEVERAL = 1 << 20, 1 << 14
"""Where several graphs are in one process, less counts: a matrix of a small language model has 0.1 to 0.9 MB in 8 bits.
"""
_SMALL_BYTES = 64 << 20
"""Up to here weights are few enough to keep what is freed: MiniLM's 20 MB more spare a twelfth of a compile."""
_KEPT_FROM_BYTES, _KEPT_FREE, _GROWN_BY = 32 << 20, 64 << 20, 1 << 20
"""glibc comes to the first two by itself, as it sees large blocks freed. Set, they are the same in every process."""
_EVERY_S = 1.0


def return_large_blocks(weights_bytes: int, *, several: bool = False) -> None:
    """Have glibc return large blocks when they are freed, from now on; no other C library is changed.

    With `several` graphs to compile in this process, smaller ones, too. Of a small model, alone, nothing is returned:
    to map memory, and to have it cleared, takes time.
    """
    with contextlib.suppress(OSError, AttributeError):  # no such library, or another one
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        if several or weights_bytes > _SMALL_BYTES:
            mallopt(_MMAP_THRESHOLD, _FROM_BYTES_OF_SEVERAL if several else _FROM_BYTES)
            return
        for option, size in ((_MMAP_THRESHOLD, _KEPT_FROM_BYTES), (_TRIM_THRESHOLD, _KEPT_FREE), (_TOP_PAD, _GROWN_BY)):
            mallopt(option, size)


def return_freed() -> None:
    """Have glibc return all that is free now; no other C library is asked.

    To be called between compiles, not during one: it changes where what comes next will lie.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


@contextlib.contextmanager
def unread(arrays: Sequence[NDArray[Any]]) -> Iterator[None]:
    """While it lasts, pages of files that are mapped as `arrays` don't stay in memory once they were read.

    The compiler copies weights when it takes a graph in, and looks at them no more. Whoever does reads them anew.
    """
    maps = [found for array in arrays if isinstance(found := getattr(array, "_mmap", None), mmap.mmap)]
    if not maps or not hasattr(mmap, "MADV_DONTNEED"):
        yield
        return
    done = threading.Event()

    def drop() -> None:
        while not done.wait(_EVERY_S):
            for each in maps:
                each.madvise(mmap.MADV_DONTNEED)

    thread = threading.Thread(target=drop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


COMPILE_OPTIONS = {
    # The context is made here and run elsewhere: nothing is loaded onto a device after the compile.
    "enable_htp_prepare_only": "1",
    # 3 is the most thorough of QNN's modes. On MiniLM it adds half a second to a compile of one and a half.
    "htp_graph_finalization_optimization_mode": "3",
    # Float models run in float16; it is the default, and says so here because a typo in an option goes unnoticed.
    "enable_htp_fp16_precision": "1",
    # The conversions at the graph's edge stay on the CPU, so that inputs and outputs keep the model's dtypes cheaply.
    "offload_graph_io_quantization": "1",
    # The only place where QNN says why it left a node to the CPU. It does not change the binary.
    "enable_framework_op_trace": "1",
    # The only place where QNN says how many bytes cross the chip's edge. It does not change the binary either; of the
    # demo's compile it takes a tenth of the time.
    "profiling_level": "optrace",
    "profiling_file_path": "profile.csv",
}

Weight = tuple[str, int, NDArray[Any]]
"""Name, type of TensorProto and value of an external tensor."""
_compiled = False


class Source:
    """A model file that was found fit for the compiler. Its graph is read when it is asked for, and not kept."""

    def __init__(self, name: str, path: Path, targets: Sequence[HtpTarget]) -> None:
        """`name` is that of the context, without `_ctx.onnx`; it becomes part of the bytes.

        Raises:
            ModelError, QuantizationError: see :func:`pipeline.qnn.compiling.admission.check`.
        """
        self.name = name
        self.path = path
        self.targets = tuple(targets)
        model = self.model
        for target in targets:
            admission.check(model, path.parent, target)

    @property
    def model(self) -> ModelProto:
        """The graph, as it is in the file."""
        return load_graph(self.path)

    @property
    def context_model(self) -> str:
        """The file that the compiler leaves."""
        return f"{self.name}_ctx.onnx"

    @property
    def trace_folder(self) -> str:
        """Where the compiler leaves its trace, in the folder that it runs in."""
        return f"trace_{self.name}"

    def trace(self, work: Path) -> OpTrace:
        """Which nodes QNN did not take, once it was compiled in the folder `work`."""
        return read_trace(work / self.trace_folder)


def claim_process(name: str) -> None:
    """Note that this process compiles.

    Raises:
        CompileError: it already did.
    """
    global _compiled
    if _compiled:
        raise CompileError(
            "a second compile in one process",
            where=name,
            why="its binary would differ from one that a fresh process makes of the same input",
            remedy="compile each context in a process of its own, as pipeline.build.worker does",
        )
    _compiled = True


@contextlib.contextmanager
def workshop(out: Path) -> Iterator[Path]:
    """An empty folder on the file system of `out`, for the compiler to run in; it is gone afterwards."""
    # Not in the system's temporary folder: that may be another file system, and too small.
    with tempfile.TemporaryDirectory(prefix="qnn-", dir=out.parent, ignore_cleanup_errors=True) as work:
        yield Path(work)


def run_compiler(source: Source, work: Path, entries: Mapping[str, str] | None = None) -> None:
    """Compile in the folder `work`, with further session config `entries` where several graphs share a binary.

    Raises:
        CompileError: the compiler failed, or left nothing.
        StoreError: there was no room for what it writes.
    """
    weights = _written(source, work)
    return_large_blocks(sum(array.nbytes for _, _, array in weights), several=bool(entries))
    return_freed()
    threads = compiler_threads()
    with contextlib.chdir(work), recorded() as log, unread([array for _, _, array in weights]):
        settings = threads.preparing.run(_settings, source, weights, entries or {})
        try:
            threads.compile(_compile, source, settings)
        except Exception as error:  # onnxruntime raises classes of its extension module, without a common base
            raise _failed(source, str(error), log) from error
        written = Path(source.context_model)
        if not written.exists() or not binary_names(load_graph(written)):
            raise _failed(source, "it reported no error", log)


def give_model(settings: ort.SessionOptions, source: Source, work: Path) -> list[NDArray[Any]]:
    """Put `<name>.onnx` into the folder `work` and its weights into `settings`.

    The arrays returned must live until the session that gets the settings is done with them.
    """
    weights = _written(source, work)
    _hand_over(settings, weights)
    return [array for _, _, array in weights]


def _written(source: Source, work: Path) -> list[Weight]:
    """Put `<name>.onnx` into the folder `work`; its external tensors."""
    model = source.model
    external = [tensor for tensor in model.graph.initializer if is_external(tensor)]
    if any(form_of(tensor) for tensor in model.graph.initializer):
        save_graph(without_forms(model), work / f"{source.name}.onnx")
    else:
        shutil.copyfile(source.path, work / f"{source.name}.onnx")
    folder = source.path.parent
    return [(tensor.name, tensor.data_type, _packed(tensor_array(tensor, folder))) for tensor in external]


def _hand_over(settings: ort.SessionOptions, weights: Sequence[Weight]) -> None:
    """Give a session its model's external tensors; the arrays must live until it is done."""
    if weights:
        values = [ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, kind) for _, kind, array in weights]
        settings.add_external_initializers([name for name, _, _ in weights], values)


def _packed(array: NDArray[Any]) -> NDArray[Any]:
    """Memory from which onnxruntime reads a tensor of this shape: for 4 bits, two elements in each of the first bytes.

    numpy has a byte for each element; the second half stays unused.
    """
    if array.dtype.name not in ("int4", "uint4"):
        return array
    memory = np.zeros(array.shape, np.uint8)
    packed = np.frombuffer(numpy_helper.from_array(array).raw_data, np.uint8)
    memory.reshape(-1)[: packed.size] = packed
    return memory


def _settings(source: Source, weights: Sequence[Weight], entries: Mapping[str, str]) -> ort.SessionOptions:
    settings = session_options(source.targets, COMPILE_OPTIONS | {"framework_op_trace_dir": source.trace_folder})
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1  # others map memory, one for each core
    for key, value in entries.items():
        settings.add_session_config_entry(key, value)
    _hand_over(settings, weights)
    return settings


def _compile(source: Source, settings: ort.SessionOptions) -> None:
    """Compile `<name>.onnx` of the current folder into the current folder."""
    compiler = ort.ModelCompiler(
        settings, f"{source.name}.onnx", flags=ort.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED
    )
    compiler.compile_to_file(source.context_model)


def _failed(source: Source, message: str, log: NativeLog) -> PipelineError:
    """The error for a compile that produced nothing: the cause if it is known, and QNN's own words in any case."""
    trace = read_trace(Path(source.trace_folder))
    refused = [f"{node.op} {node.name!r}: {node.reason}" for node in trace.unsupported]
    said = [message, *log.errors(), *refused[:5]]
    if len(refused) > 5:
        said.append(f"and {len(refused) - 5} more nodes")
    if failures.find("\n".join((*said, log.text()))) is failures.DISK_FULL:
        return no_room(f"the context of {source.name}")
    why, remedy = failures.explain(said, log.text())
    if trace.unsupported and failures.find("\n".join((*said, log.text()))) is None:
        remedy = "; ".join(dict.fromkeys(hints.of(node.op, node.reason) for node in trace.unsupported[:5]))
    targets = ", ".join(map(str, source.targets))
    return CompileError(
        f"QNN compiled nothing of {source.name} for {targets}", where=f"{source.name}.onnx", why=why, remedy=remedy
    )
