"""A Slurm cluster of one node on this machine: munged, slurmctld and slurmd as plain processes in one folder.

Nothing of the system's own Slurm is read or written: sockets, key, ports, state and logs are this cluster's. By hand,
`python -m tests.cluster.daemons FOLDER` starts one and says what to export; Ctrl-C stops it.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ("setpriv", "munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")
PATIENCE = 60  # seconds for each daemon to answer

CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}
SlurmctldPort={control}
SlurmdPort={node}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SchedulerParameters=sched_interval=1,batch_sched_delay=1
InactiveLimit=0
KillWait=30
MinJobAge=300
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Say why no cluster can be started here, or nothing."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} not found: apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "slurmd starts jobs as root only"


@contextmanager
def cluster(folder: Path, cpus: int = 2) -> Iterator[dict[str, str]]:
    """Run a cluster of one node for the duration; yield the environment in which its commands find it."""
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    host = socket.gethostname().partition(".")[0]
    configuration = folder / "slurm.conf"
    ports = dict(zip(("control", "node"), free_ports(2), strict=True))
    configuration.write_text(CONFIGURATION.format(host=host, folder=folder, cpus=cpus, **ports))
    environment = {**os.environ, "SLURM_CONF": str(configuration)}
    with ExitStack() as stack:
        for command, answers in _daemons(folder, configuration, host):
            stack.enter_context(_running(command, environment, folder))
            until(lambda ask=answers: _succeeds(ask, environment), f"{command[0]} does not answer, see {folder}")
        until(lambda: "idle" in _output(["sinfo", "-h", "-o", "%T"], environment), f"no idle node, see {folder}")
        yield environment


def _daemons(folder: Path, configuration: Path, host: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield each daemon's command, and one that succeeds once it answers."""
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    socket_path = f"{folder}/munge.socket"
    files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "seed", "log")]
    yield ["munged", "--foreground", "--force", f"--socket={socket_path}", *files], ["munge", "-n", "-S", socket_path]
    yield ["slurmctld", "-D", "-f", str(configuration)], ["scontrol", "ping"]
    yield ["slurmd", "-D", "-f", str(configuration), "-N", host], ["scontrol", "show", "node", host]


@contextmanager
def _running(command: list[str], environment: dict[str, str], folder: Path) -> Iterator[None]:
    with (folder / "daemons.log").open("ab") as log:
        obedient = ["setpriv", "--pdeathsig", "TERM", *command]  # ends with this process, however that ends
        process = subprocess.Popen(obedient, env=environment, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()


def until(condition: Callable[[], object], otherwise: str, patience: float = PATIENCE) -> None:
    """Wait until `condition` holds."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        time.sleep(0.1)


def _succeeds(command: list[str], environment: dict[str, str]) -> bool:
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0


def _output(command: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in sockets]


if __name__ == "__main__":
    where = Path(sys.argv[1]).resolve()
    where.mkdir()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit())
    with cluster(where) as found:
        print(f"export SLURM_CONF={found['SLURM_CONF']}", flush=True)
        signal.pause()
