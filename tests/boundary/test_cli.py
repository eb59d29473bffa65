"""What the command line says of itself, and of mistakes that no table of bad values has."""

import math
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import lowcurve as lc
from lowcurve import cli
from lowcurve.errors import UserError


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str, str]:
    monkeypatch.setattr(sys, "argv", ["lowcurve", *words])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code, *capsys.readouterr()


def test_the_version(monkeypatch, capsys) -> None:
    assert said(monkeypatch, capsys, "--version")[1] == f"lowcurve {lc.__version__}\n"


def test_the_doctor_names_versions_loops_devices_and_how_to_get_data(monkeypatch, capsys, tmp_path) -> None:
    code, out, _ = said(monkeypatch, capsys, "doctor", f"--data-dir={tmp_path}")
    assert code == 0
    for expected in (lc.__version__, torch.__version__, "compiled loops", "processor", "data fetch svhn", "embedded"):
        assert expected in out


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (UserError("two\n  lines\x1b[31m"), "error: two lines [31m\n"),
        (OSError(28, "No space left on device", "x.json"), "error: No space left on device: x.json\n"),
        (MemoryError("8 GiB"), "not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "not enough memory"),
    ],
)
def test_what_a_user_can_mend_is_one_line_and_exit_2(monkeypatch, capsys, raised, expected) -> None:
    monkeypatch.setattr(cli, "app", lambda: (_ for _ in ()).throw(raised))
    code, out, err = said(monkeypatch, capsys)
    assert (code, out, err.count("\n")) == (2, "", 1) and expected in err


def test_a_bug_is_one_line_with_the_traceback_in_a_file(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr(cli.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(cli, "app", lambda: {}["missing"])
    code, _, err = said(monkeypatch, capsys)
    (kept,) = tmp_path.iterdir()
    assert code == cli.BUG and err.count("\n") == 1 and str(kept) in err and "please report" in err
    assert "Traceback" in Path(kept).read_text() and "Traceback" not in err


@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e-20, 1e-10, 1.0, 1e10, 1e15, 1e20, 1e30])
def test_spectral_norm_of_any_scale_is_one_or_refused(scale: float) -> None:
    layer = nn.Linear(5, 4)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(4, 5, generator=torch.Generator().manual_seed(0)) * scale)
    try:
        lc.spectral_norm(layer)
    except UserError as error:
        assert "scale the weight" in str(error) and not 1e-14 < scale < 1e14
        return
    norm = float(torch.linalg.matrix_norm(layer.eval().weight.detach().double(), 2))
    assert math.isclose(norm, 1, abs_tol=1e-2)
