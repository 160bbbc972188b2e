"""What `make` says where pip fails."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("pip_says", "make_says"),
    [
        (
            "WARNING: Retrying: NewConnectionError('...')\nERROR: No matching distribution found",
            "no network: pip reaches no package index",
        ),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "pip failed:\nERROR: THESE PACKAGES DO"),
        (
            "ERROR: Exception:\nTraceback (most recent):\n  File 'a.py'\nOSError: [Errno 28]",
            "pip failed:\nERROR: Exception:\nOSError: [Errno 28]",
        ),
    ],
)
def test_what_stopped_pip_is_said(tmp_path, pip_says, make_says):
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    for done in ("bin/python", ".run"):
        (venv / done).touch()
    (tmp_path / "said").write_text(f"{pip_says}\n")
    pip = tmp_path / "pip"
    pip.write_text(f"#!/bin/sh\ncat {tmp_path}/said\nexit 2\n")
    pip.chmod(0o755)
    result = subprocess.run(
        ["make", "--no-print-directory", f"VENV={venv}", f"PIP={pip}", f"{venv}/.small"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr.startswith(make_says)) == (2, True), result.stderr
