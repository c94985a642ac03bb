"""One throw-away Slurm for all tests of a session that ask for it."""

import pytest
from throwaway_slurm import Cluster, missing


@pytest.fixture(scope="session")
def slurm_cluster():
    """Three nodes of a real Slurm. Skipped, in one line that says how to change it, where there can be none."""
    why = missing()
    if why:
        pytest.skip(why)
    cluster = Cluster(nodes=3)
    try:
        yield cluster.start()
    finally:
        cluster.stop()


@pytest.fixture
def slurm(slurm_cluster, monkeypatch):
    """The cluster, idle, and this process set up as on its login node."""
    slurm_cluster.wait_until_idle()
    for key, value in slurm_cluster.variables.items():
        monkeypatch.setenv(key, value)
    yield slurm_cluster
    slurm_cluster.call("scancel", "--state=PENDING", "--me", check=False)
    slurm_cluster.call("scancel", "--signal=KILL", "--full", "--me", check=False)
    slurm_cluster.call("scancel", "--me", check=False)
