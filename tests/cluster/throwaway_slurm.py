"""A real Slurm for the tests: munge, slurmctld and a few slurmd, started in about a second and ended with the session.

Each node lives in UTS, PID and mount namespaces of its own, so it has its own host name and dies as a whole when
its first process is killed. Nodes share this machine's network and differ by address (127.0.1.1, 127.0.1.2, ...).
Every daemon also dies with the process that started it, however that ends.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from pathlib import Path

PACKAGES = "slurmctld slurmd slurm-client munge"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "sinfo", "srun", "scontrol", "unshare")
GPUS = 8
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)

CONF = """\
ClusterName=throwaway
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# a requeued job waits until its old credentials have expired: 120 s by default, 5 s at least
AuthInfo=socket={root}/munge.sock,cred_expire=5
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/%n.log
# no cgroups and no binding: 64 cores are declared, a few exist
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
AllowSpecResourcesUsage=yes
GresTypes=gpu
JobRequeue=1
FirstJobId={first_job}
EnforcePartLimits=ALL
JobSubmitPlugins=lua
# quick reactions
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
PriorityType=priority/basic
SlurmctldTimeout=30
SlurmdTimeout={node_timeout}
MessageTimeout=3
TCPTimeout=1
InactiveLimit=0
KillWait=2
MinJobAge=3600
ReturnToService=2
CompleteWait=0
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
"""

# Without slurmdbd no account is checked; this refuses what slurmdbd would, by the same error number.
LUA = """\
function slurm_job_submit(job, partition, uid)
    if job.account ~= nil and job.account ~= "abc123" then
        slurm.log_user("account " .. job.account .. " is not one of yours: abc123")
        return 2045
    end
    return slurm.SUCCESS
end
function slurm_job_modify(job, record, partition, uid)
    return slurm.SUCCESS
end
"""

# The first process of a node reaps what slurmd's steps leave behind, and takes the node with it when it ends.
BOOT = """\
hostname "$1" && mount --bind "$2/hosts" /etc/hosts || exit 1
slurmd -D -N "$1" & daemon=$!
while kill -0 "$daemon" 2>/dev/null; do wait "$daemon"; done
"""


def missing():
    """Why no cluster can be started here, in one line that says how to change it; ``None`` if one can."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if absent:
        return f"no Slurm here ({absent[0]} is missing); as root: apt-get install --no-install-recommends {PACKAGES}"
    if os.geteuid() != 0:
        return "a throw-away Slurm needs root for its nodes' namespaces; run the tests as root in a container"
    if subprocess.run(["unshare", "--uts", "--mount", "--pid", "--fork", "true"], capture_output=True).returncode:
        return "namespaces are not allowed here (unshare fails); run the tests in a privileged container"
    return None


class Cluster:
    """Nodes frontier00001, ...; partitions ``batch`` (2 h) and ``extended`` (24 h, one node); account abc123.

    Args:
        node_timeout: seconds without an answer after which a node counts as down.
    """

    def __init__(self, nodes=2, node_timeout=4):
        self.nodes = [f"frontier{number:05d}" for number in range(1, nodes + 1)]
        self.node_timeout = node_timeout
        self.root = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # short, as a socket's path must be
        self.processes = {}

    @property
    def variables(self):
        """What a client needs in its environment."""
        return {"SLURM_CONF": str(self.root / "slurm.conf")}

    def start(self):
        self._configure()
        self._spawn("munged", ["munged", "--foreground", "--num-threads=4", *self._munge_files()])
        self._until(lambda: (self.root / "munge.sock").exists(), 10, "munged's socket")
        self._spawn("slurmctld", ["slurmctld", "-D"])
        for name in self.nodes:
            self.boot_node(name)
        self._until(lambda: self.node_states() == ["idle"] * len(self.nodes), 30, "all nodes to be idle")
        return self

    def stop(self):
        """End everything that was started, nodes first."""
        for name in [*self.nodes, "slurmctld", "munged"]:
            self._end(name, signal.SIGKILL if name in self.nodes else signal.SIGTERM)
        shutil.rmtree(self.root, ignore_errors=True)

    def boot_node(self, name):
        alone = ["unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
        self._spawn(name, [*alone, "bash", "-c", BOOT, "boot", name, str(self.root)])

    def kill_node(self, name):
        """Power off: slurmd, job steps and tasks are gone at once."""
        self._end(name, signal.SIGKILL)

    def stop_controller(self):
        self._end("slurmctld", signal.SIGTERM)

    def start_controller(self):
        self._spawn("slurmctld", ["slurmctld", "-D"])

    def node_states(self):
        return self.call("sinfo", "-h", "-N", "-p", "batch", "-o", "%t", check=False).split()

    def wait_until_idle(self):
        """All nodes up and no job left: what a test may expect to find."""
        for name in self.nodes:
            if name not in self.processes:
                self.boot_node(name)
        self._until(
            lambda: self.node_states() == ["idle"] * len(self.nodes) and not self.call("squeue", "-h", check=False),
            60,
            "the cluster to be idle",
        )

    def call(self, program, *arguments, check=True):
        """Standard output of a Slurm command."""
        environment = {**os.environ, **self.variables, "PATH": _path()}
        done = subprocess.run([program, *arguments], env=environment, capture_output=True, text=True, timeout=20)
        if check and done.returncode:
            raise RuntimeError(f"{program} {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout.strip() if done.returncode == 0 else ""

    def logs(self):
        return "\n".join(f"== {p.name}\n{p.read_text(errors='replace')[-2000:]}" for p in self.root.glob("*.log"))

    def _configure(self):
        root = self.root
        root.chmod(0o755)
        for name in ("state", "spool"):
            (root / name).mkdir()
        (root / "munge.key").touch(mode=0o600)
        (root / "munge.key").write_bytes(os.urandom(128))
        (root / "job_submit.lua").write_text(LUA)
        host = socket.gethostname()
        ports = _free_ports(1 + len(self.nodes))
        conf = CONF.format(
            host=host, port=ports[0], root=root, first_job=1000 + ports[0] % 10000, node_timeout=self.node_timeout
        )
        hosts = ["127.0.0.1 localhost", f"127.0.0.1 {host}"]
        for number, (name, port) in enumerate(zip(self.nodes, ports[1:], strict=True), start=1):
            conf += (
                f"NodeName={name} NodeHostname={name} NodeAddr=127.0.1.{number} Port={port} Sockets=8 CoresPerSocket=8 "
                f"ThreadsPerCore=2 RealMemory=512000 CoreSpecCount=8 Features=nvme Gres=gpu:{GPUS}\n"
            )
            hosts.append(f"127.0.1.{number} {name}")
        conf += "PartitionName=batch Nodes=ALL Default=YES MaxTime=120 OverSubscribe=EXCLUSIVE\n"
        conf += "PartitionName=extended Nodes=ALL MaxTime=1440 MaxNodes=1 OverSubscribe=EXCLUSIVE\n"
        (root / "slurm.conf").write_text(conf)
        (root / "hosts").write_text("\n".join(hosts) + "\n")
        # Slurm wants a character device for each GPU: copies of /dev/null
        lines = ["AutoDetect=off"]
        for gpu in range(GPUS):
            os.mknod(root / f"gpu{gpu}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            lines.append(f"Name=gpu File={root}/gpu{gpu} Flags=amd_gpu_env")
        (root / "gres.conf").write_text("\n".join(lines) + "\n")
        if int(self.call("sbatch", "-V").split()[1].split(".")[0]) >= 23:
            (root / "cgroup.conf").write_text("CgroupPlugin=disabled\n")  # loaded there, whether used or not

    def _munge_files(self):
        names = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid", "log-file": "munged.log"}
        return [f"--{key}={self.root / name}" for key, name in names.items()] + [f"--seed-file={self.root}/munge.seed"]

    def _spawn(self, name, command):
        with (self.root / f"{name}.out.log").open("ab") as out:
            self.processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**_clean_environment(), **self.variables, "PATH": _path()},
                start_new_session=True,
                preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
            )

    def _end(self, name, number):
        process = self.processes.pop(name, None)
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(5)

    def _until(self, done, seconds, what):
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                raise RuntimeError(f"waited {seconds} s for {what}\n{self.logs()}")
            dead = [n for n, p in self.processes.items() if p.poll() is not None]
            if dead:
                raise RuntimeError(f"{dead[0]} ended while waiting for {what}\n{self.logs()}")
            time.sleep(0.05)


def _clean_environment():
    return {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "SRUN"))}


def _path():
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in sockets]
