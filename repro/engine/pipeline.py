"""The model as DeepSpeed's PipelineModule, with the recipe's own split of layers over stages."""

from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec

from repro.layout import stage_bounds
from repro.model.gpt import Block, layers, mean_loss


class GPTPipeline(PipelineModule):
    """This rank's stage of the GPT.

    DeepSpeed's partitioning is replaced by :func:`repro.layout.stage_bounds`, and its list of tied
    gradients is extended by those that sequence parallelism leaves partial.

    Args:
        recipe: :class:`repro.recipe.Recipe`.
        tp: :class:`repro.model.tensor_parallel.TensorParallel` of this rank.
        topology: DeepSpeed's topology with the recipe's sizes.
    """

    def __init__(self, recipe, tp, topology):
        self._bounds = stage_bounds(recipe.stage_layers)
        self.tp = tp
        super().__init__(
            layers=[_spec(layer) for layer in layers(recipe, tp)],
            topology=topology,
            loss_fn=mean_loss(recipe, tp),
            activation_checkpoint_interval=1 if recipe.compute.recompute == "full" else 0,
            activation_checkpoint_func=tp.streams.checkpoint,
            checkpointable_layers=[Block.__name__],
        )

    def _partition_layers(self, method=None):
        self.parts = self._bounds
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])

    def get_tied_weights_and_groups(self):
        """Gradients to sum before the data-parallel reduction: tied weights over the first and last
        stage, and over the tensor-parallel group the parameters that saw a part of the sequence."""
        partial = [(p, self.tp.group) for p in self.parameters() if getattr(p, "sequence_partial", False)]
        return super().get_tied_weights_and_groups() + partial


def _spec(layer):
    if layer.tied:
        return TiedLayerSpec("embedding", layer.build, *layer.arguments, forward_fn=layer.forward)
    return LayerSpec(layer.build, *layer.arguments)
