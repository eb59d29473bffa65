"""`lowcurve doctor`: what is installed, what is found, what is missing and how to get it?"""

from collections.abc import Iterator

from lowcurve.commands import options

PACKAGES = ("numpy", "scipy", "scikit-learn", "pyarrow", "pillow", "matplotlib", "pydantic", "typer", "safetensors")
EXTRAS = {  # package -> what it is for, and the extra that brings it
    "captum": ("explanations other than gradients", "explain"),
    "submitit": ("reproduce --executor slurm", "slurm"),
}
Finding = tuple[str, str, str]  # what was looked for, what was found, how to get what is missing


def doctor(data_dir: options.DataDir = None) -> None:
    """Show versions, compiled loops, devices and data sets, and how to get what is missing."""
    from rich.table import Table

    from lowcurve import text

    table = Table(box=None, show_header=False)
    missing = 0
    for findings in (_versions(), _compiled(), _devices(), _extras(), _data(data_dir)):
        for what, found, remedy in findings:
            table.add_row(*map(text.one_line, (what, found, remedy)), style="yellow" if remedy else None)
            missing += bool(remedy)
    console = text.console()
    console.print(table)
    console.print("nothing is missing" if not missing else f"{missing} optional thing(s) missing; the rest works")


def _versions() -> Iterator[Finding]:
    from importlib.metadata import PackageNotFoundError, version

    from lowcurve.environment import environment

    found = environment()
    yield "lowcurve", " ".join(filter(None, (found["lowcurve"], found["commit"][:12]))), ""
    yield "python", found["python"], ""
    yield "torch", found["torch"], ""
    for package in PACKAGES:
        try:
            yield package, version(package), ""
        except PackageNotFoundError:
            yield package, "not installed", f"pip install {package}"


def _compiled() -> Iterator[Finding]:
    from lowcurve.kernels.cpu.library import LIBRARY

    if LIBRARY is None:
        yield "compiled loops", "no: training is slower", "install a C compiler, then pip install lowcurve again"
    else:
        yield "compiled loops", "yes", ""


def _devices() -> Iterator[Finding]:
    import os

    import torch

    from lowcurve.cores import given_cores
    from lowcurve.environment import processor

    cores = f"{os.cpu_count()} cores, {given_cores()} of them for this process, threads: {torch.get_num_threads()}"
    yield "processor", f"{processor()}, {cores}", ""
    for index in range(torch.cuda.device_count()):
        yield f"cuda:{index}", torch.cuda.get_device_name(index), ""
    if not torch.cuda.is_available():
        yield "GPU", "none that this PyTorch can use", ""


def _extras() -> Iterator[Finding]:
    from importlib.util import find_spec

    for package, (purpose, extra) in EXTRAS.items():
        there = find_spec(package) is not None
        yield (
            package,
            "installed" if there else f"not installed: {purpose}",
            "" if there else f"pip install 'lowcurve[{extra}]'",
        )


def _data(data_dir: options.DataDir) -> Iterator[Finding]:
    from lowcurve.data import DATASETS, data_directory, find

    yield "data directory", str(data_directory(data_dir)), ""
    for name, source in DATASETS.items():
        found = None if source.read else find(name, data_dir)
        where = "embedded" if source.read else found.layout if found else ""
        yield name, where or "not there", "" if where else f"lowcurve data fetch {name}"
