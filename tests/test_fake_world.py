"""The replacements of a fake world: undone on leaving, and still what DeepSpeed and torch have in their place."""

import hashlib
import inspect

import pytest
import torch

from repro.tracing.fake_world import fake_world, replacements

# sha256 of the source that was read when the replacement was written. Another hash means: read it again.
WRITTEN_FOR = {
    "deepspeed": "0.19.8",
    "PartitionedTensor.to_meta": "922c16259b9be75c",
    "PartitionedTensor.from_meta": "fb7b3c2661a8b7c5",
    "PipelineEngine._send_tensor_meta": "bbc32db6b1aab8e0",
    "PipelineEngine._recv_tensor_meta": "ab38845ae896251a",
    "PipelineParallelGrid._build_p2p_groups": "f49a0d4861ea1cdc",
}


def test_deepspeed_has_not_changed_underneath():
    import deepspeed
    from deepspeed.runtime.pipe.engine import PipelineEngine
    from deepspeed.runtime.pipe.topology import PipelineParallelGrid
    from deepspeed.runtime.utils import PartitionedTensor

    found = {"deepspeed": deepspeed.__version__.split("+")[0]}
    for owner, name in (
        (PartitionedTensor, "to_meta"),
        (PartitionedTensor, "from_meta"),
        (PipelineEngine, "_send_tensor_meta"),
        (PipelineEngine, "_recv_tensor_meta"),
        (PipelineParallelGrid, "_build_p2p_groups"),
    ):
        source = inspect.getsource(getattr(owner, name))
        found[f"{owner.__name__}.{name}"] = hashlib.sha256(source.encode()).hexdigest()[:16]
    assert found == WRITTEN_FOR


def test_everything_is_undone_on_leaving(small):
    import torch.distributed as dist
    from deepspeed.runtime.pipe.engine import PipelineEngine
    from deepspeed.runtime.utils import PartitionedTensor

    places = [(PartitionedTensor, "to_meta"), (PipelineEngine, "_recv_tensor_meta"), (torch.nn.Module, "_apply")]
    before = [inspect.getattr_static(*place) for place in places]
    attention = torch.nn.functional.scaled_dot_product_attention
    with fake_world(small(parallel={"tp": 2}), 1):
        assert dist.get_rank() == 1
        assert inspect.getattr_static(*places[0]) is not before[0]
    assert [inspect.getattr_static(*place) for place in places] == before
    assert torch.nn.functional.scaled_dot_product_attention is attention
    assert not dist.is_initialized()
    assert torch.ones(2).sum().item() == 2


def test_an_error_inside_leaves_a_clean_process(small):
    with pytest.raises(ZeroDivisionError), fake_world(small(), 0):
        raise ZeroDivisionError
    with fake_world(small(), 0) as device:
        assert device.type == "cpu"


def test_replacements_cover_no_more_than_is_listed(small):
    assert len(replacements(small())) == 11
