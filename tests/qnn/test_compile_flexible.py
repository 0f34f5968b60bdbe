"""One binary for several SoCs, with the real compiler, on a tiny model: made, read back, pruned."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.contracts.context import CompiledModel
from pipeline.contracts.target import HtpTarget
from pipeline.errors import CompileError, ConfigError
from pipeline.graph.files.model_file import load_graph
from pipeline.qnn.format.context_binary import parse, read_binaries
from pipeline.qnn.format.flexible import digests, prune, read_flexible, without_timestamps
from pipeline.qnn.running.emulate import can_emulate
from pipeline.qnn.session import bundled_sdk
from tests.support.contexts import edit
from tests.support.packs import FLEXIBLE, NAME, SM8650, SM8750, X_ELITE, contents, flexible
from tests.support.tiny_models import float_model, qdq_model

CONTEXT = f"{NAME}_ctx.onnx"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qdq_model(tmp_path_factory.mktemp("qdq"))


@pytest.fixture(scope="module")
def built(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CompiledModel]:
    out = tmp_path_factory.mktemp("built") / "out"
    return out, flexible(model, out, [SM8650, SM8750, X_ELITE])


class TestWhatIsMade:
    def test_one_context_model_and_one_binary_for_all(self, built: tuple[Path, CompiledModel]) -> None:
        out, context = built
        assert sorted(contents(out)) == [CONTEXT, FLEXIBLE]
        assert context.targets == (X_ELITE, SM8650, SM8750)  # in the order of their records, whatever was given
        assert context.compatibility == f"v2:6:{bundled_sdk()}:5.51.0:73,75,79:60,57,69:8,8,8:0"
        assert [node.name for node in context.cpu_nodes] == ["x_quantize", "relu1_dequantize"]

    def test_the_records_are_one_for_each_soc_and_the_weights(self, built: tuple[Path, CompiledModel]) -> None:
        found = read_flexible(built[0] / FLEXIBLE)
        assert [(cache.record.name, cache.target) for cache in found.caches] == [
            ("htp.cache.sc8380xp.0", X_ELITE),
            ("htp.cache.sm8650.0", SM8650),
            ("htp.cache.sm8750.0", SM8750),
        ]
        kinds = sorted(record.name.split("<")[0] for record in found.records)
        assert kinds[3:] == ["htp.cache.sm8750.0", "htp.metadata.shared_weights.", "htp.shared.weights."]
        assert all(cache.needs == found.caches[0].needs != () for cache in found.caches)
        assert {name: size for name, (size, _) in digests(found).items()} == {
            record.name: record.size for record in found.records
        }

    def test_python_reads_the_archive_as_a_zip(self, built: tuple[Path, CompiledModel]) -> None:
        with zipfile.ZipFile(built[0] / FLEXIBLE) as archive:
            sizes = {info.filename: info.file_size for info in archive.infolist()}
        assert sizes == {record.name: record.size for record in read_flexible(built[0] / FLEXIBLE).records}

    def test_each_cache_is_a_binary_for_its_soc(self, built: tuple[Path, CompiledModel]) -> None:
        infos = read_binaries(built[0] / FLEXIBLE)
        assert [(info.soc_model, info.htp_arch) for info in infos] == [(60, 73), (57, 75), (69, 79)]
        assert len({info.graphs for info in infos}) == 1

    def test_a_target_may_leave_its_memory_to_the_compiler(self, model: Path, tmp_path: Path) -> None:
        context = flexible(model, tmp_path / "out", [X_ELITE, HtpTarget(88, 81)])
        assert context.targets == (X_ELITE, HtpTarget(88, 81, 4))

    def test_a_model_in_two_partitions(self, tmp_path: Path) -> None:
        context = flexible(float_model(tmp_path / "m", between="Asinh"), tmp_path / "out", [X_ELITE, SM8650])
        assert context.partitions == 2
        assert [len(cache.graphs) for cache in read_flexible(tmp_path / "out" / FLEXIBLE).caches] == [2, 2]

    def test_an_architecture_that_is_not_the_socs(self, model: Path, tmp_path: Path) -> None:
        with pytest.raises(CompileError) as caught:
            flexible(model, tmp_path / "out", [HtpTarget(57, 73, 8), X_ELITE])
        assert caught.value.why == (
            "it is for SoC 60 (HTP v73) and SoC 57 (HTP v75), SoC 60 (HTP v73) and SoC 57 (HTP v73) was asked for"
        )
        assert not list((tmp_path / "out").iterdir())

    def test_the_emulator_can_not_take_it(self, built: tuple[Path, CompiledModel], tmp_path: Path) -> None:
        assert not can_emulate(built[0], CONTEXT)
        prune(built[0] / CONTEXT, [60], tmp_path)
        assert not can_emulate(tmp_path, CONTEXT)


class TestBytes:
    def test_do_not_depend_on_time_folder_or_the_order_of_targets(
        self, built: tuple[Path, CompiledModel], model: Path, tmp_path: Path
    ) -> None:
        elsewhere = tmp_path / "Ünïcode 폴더 with spaces"
        shutil.copytree(model.parent, elsewhere / "m")
        assert flexible(elsewhere / "m" / model.name, elsewhere / "out", [X_ELITE, SM8750, SM8650]) == built[1]
        assert contents(elsewhere / "out") == contents(built[0])

    def test_only_times_were_changed_after_the_compile(self, built: tuple[Path, CompiledModel], tmp_path: Path) -> None:
        """Put a time back: the archive stays one, and taking it out again gives the same bytes."""
        data = (built[0] / FLEXIBLE).read_bytes()
        assert data.count(b'"timestamp": "1980-01-01 00:00:00 UTC"') == 8  # the archive's, 3 caches', 4 relations'
        (tmp_path / FLEXIBLE).write_bytes(data.replace(b"1980-01-01 00:00:00 UTC", b"2026-11-21 10:30:00 UTC"))
        shutil.copy(built[0] / CONTEXT, tmp_path)
        prune(tmp_path / CONTEXT, [60, 57, 69], tmp_path / "pruned")
        without_timestamps(tmp_path / FLEXIBLE)
        assert (tmp_path / FLEXIBLE).read_bytes() == (tmp_path / "pruned" / FLEXIBLE).read_bytes() == data


class TestPruned:
    def test_is_what_would_have_been_compiled(
        self, built: tuple[Path, CompiledModel], model: Path, tmp_path: Path
    ) -> None:
        pruned = prune(built[0] / CONTEXT, [57, 60], tmp_path / "pruned")
        context = flexible(model, tmp_path / "compiled", [X_ELITE, SM8650])
        assert contents(tmp_path / "pruned") == contents(tmp_path / "compiled")
        assert (pruned.targets, pruned.compatibility) == (context.targets, context.compatibility)

    def test_keeps_the_records_of_its_socs_to_the_byte(self, built: tuple[Path, CompiledModel], tmp_path: Path) -> None:
        before = digests(read_flexible(built[0] / FLEXIBLE))
        pruned = prune(built[0] / CONTEXT, [69], tmp_path)
        assert pruned.compatibility == f"v2:6:{bundled_sdk()}:5.51.0:79:69:8:0"
        assert pruned.targets == (SM8750,)
        kept = {name: value for name, value in pruned.records.items() if not name.startswith("dlc.")}
        assert kept == {name: before[name] for name in kept}
        assert [name for name in pruned.records if name.startswith("htp.cache")] == ["htp.cache.sm8750.0"]
        assert (tmp_path / FLEXIBLE).stat().st_size < (built[0] / FLEXIBLE).stat().st_size
        assert [info.soc_model for info in read_binaries(tmp_path / FLEXIBLE)] == [69]

    def test_keeps_the_row_of_its_soc_whatever_the_order_of_rows(
        self, built: tuple[Path, CompiledModel], tmp_path: Path
    ) -> None:
        """The tool that comes with onnxruntime-qnn takes the row at the record's place, here that of SoC 57."""
        shutil.copytree(built[0], tmp_path / "in")
        edit(tmp_path / "in" / CONTEXT, _rows("75,79,73:57,69,60:2,4,8"))
        pruned = prune(tmp_path / "in" / CONTEXT, [60], tmp_path / "out")
        assert pruned.compatibility == f"v2:6:{bundled_sdk()}:5.51.0:73:60:8:0"
        assert load_graph(tmp_path / "out" / CONTEXT).metadata_props[0].value == pruned.compatibility

    def test_to_all_of_its_socs_is_the_same(self, built: tuple[Path, CompiledModel], tmp_path: Path) -> None:
        prune(built[0] / CONTEXT, [60, 57, 69], tmp_path)
        assert contents(tmp_path) == contents(built[0])

    def test_in_steps_is_as_at_once(self, built: tuple[Path, CompiledModel], tmp_path: Path) -> None:
        prune(built[0] / CONTEXT, [57, 69], tmp_path / "first")
        prune(tmp_path / "first" / CONTEXT, [69], tmp_path / "second")
        prune(built[0] / CONTEXT, [69], tmp_path / "once")
        assert contents(tmp_path / "second") == contents(tmp_path / "once")

    def test_drops_weights_that_no_kept_cache_needs(self, tmp_path: Path) -> None:
        flexible(float_model(tmp_path / "m", between="Asinh"), tmp_path / "in", [X_ELITE, SM8650])
        pruned = prune(tmp_path / "in" / CONTEXT, [57], tmp_path / "out")
        (cache,) = read_flexible(tmp_path / "out" / FLEXIBLE).caches
        assert {name for name in pruned.records if name.startswith("htp.shared")} == set(cache.needs)


class TestRefusals:
    def test_a_soc_that_is_not_in_it(self, built: tuple[Path, CompiledModel], tmp_path: Path) -> None:
        with pytest.raises(ConfigError) as caught:
            prune(built[0] / CONTEXT, [60, 88], tmp_path)
        assert caught.value.what == "encoder_8_ctx.onnx is not for SoC 88"
        assert caught.value.why == "it is for 57, 60, 69"
        assert not list(tmp_path.iterdir())

    def test_no_soc(self, built: tuple[Path, CompiledModel], tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="no SoC to keep was named"):
            prune(built[0] / CONTEXT, [], tmp_path)

    def test_the_folder_it_is_in(self, built: tuple[Path, CompiledModel]) -> None:
        with pytest.raises(ConfigError, match="a context can't be pruned in place"):
            prune(built[0] / CONTEXT, [60], built[0])

    def test_a_context_for_one_soc(self, model: Path, tmp_path: Path) -> None:
        with pytest.raises(CompileError) as caught:
            prune(model, [60], tmp_path)
        assert caught.value.why == "it does not refer to one binary for several SoCs"

    def test_a_model_that_names_other_socs_than_its_binary(
        self, built: tuple[Path, CompiledModel], tmp_path: Path
    ) -> None:
        shutil.copytree(built[0], tmp_path / "in")
        edit(tmp_path / "in" / CONTEXT, _rows("73,75,79:60,57,88:8,8,8"))
        with pytest.raises(CompileError) as caught:
            prune(tmp_path / "in" / CONTEXT, [60], tmp_path / "out")
        assert caught.value.why == "it is for SoCs 60, 57, 88, its binary for 57, 60, 69"

    @pytest.mark.parametrize("rows", ["73,75:60,57,69:8,8,8", "73,75,79:60,57,60:8,8,8", "73"])
    def test_rows_that_make_no_table(self, built: tuple[Path, CompiledModel], tmp_path: Path, rows: str) -> None:
        shutil.copytree(built[0], tmp_path / "in")
        edit(tmp_path / "in" / CONTEXT, _rows(rows))
        with pytest.raises(CompileError, match="does not say which devices it is for"):
            prune(tmp_path / "in" / CONTEXT, [60], tmp_path / "out")

    def test_a_record_that_its_metadata_does_not_list(self, built: tuple[Path, CompiledModel], tmp_path: Path) -> None:
        data = (built[0] / FLEXIBLE).read_bytes()
        name, other = b"htp.cache.sm8650.0", b"htp.cache.sm8651.0"
        header, directory = data.index(name), data.rindex(name)
        between = data[header + len(name) : directory]
        (tmp_path / FLEXIBLE).write_bytes(data[:header] + other + between + other + data[directory + len(name) :])
        with pytest.raises(CompileError) as caught:
            read_flexible(tmp_path / FLEXIBLE)
        assert "htp.cache.sm8650.0" in caught.value.why

    def test_a_damaged_cache(self, built: tuple[Path, CompiledModel], tmp_path: Path) -> None:
        with pytest.raises(CompileError, match="can't be read back"):
            parse(np.zeros(4096, np.uint8), tmp_path.name)


def _rows(lists: str) -> Callable[[ModelProto], None]:
    def change(model: ModelProto) -> None:
        model.metadata_props[0].value = f"v2:6:{bundled_sdk()}:5.51.0:{lists}:0"

    return change
