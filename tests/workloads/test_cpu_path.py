"""What continuous integration lives on: every case computes what it says, in workers and threads where it says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farm.catalogue import read_workload
from workers.comparison import compare_outputs
from workers.session import ArmEnded

pytestmark = pytest.mark.torch

SPEC = read_workload(Path(__file__).parents[2] / "workloads" / "cpu_path.py")


@pytest.mark.parametrize("case", SPEC.cases, ids=lambda case: case.name)
def test_every_case_is_near_its_oracle_and_repeats(examine: Any, case: Any) -> None:
    raw = examine("cpu_path", "eager", dict(case.parameters), repeats=2)
    found = compare_outputs(raw["outputs"], raw["oracle"], None)["y"]
    assert found.against_oracle is not None
    epsilon = 2.0**-7 if found.dtype == "bfloat16" else 2.0**-23
    assert 0 < found.against_oracle.rms_error < 8 * epsilon * found.against_oracle.reference_rms
    assert len(set(raw["repeat_digests"])) == 1
    assert raw["facts"]["threads"] >= 1


def test_a_loader_that_was_asked_for_workers_and_has_none_fell_back(examine: Any, tmp_path: Path) -> None:
    source = Path(SPEC.file).read_text().replace("num_workers=self.workers", "num_workers=0")
    source = source.replace("persistent_workers=self.workers > 0", "persistent_workers=False")
    file = tmp_path / "no_workers.py"
    file.write_text(source)
    with pytest.raises(ArmEnded, match="the loader runs no worker processes"):
        examine(file, "eager", {"what": "data_loader", "workers": 2, "rows": 64, "width": 8})
