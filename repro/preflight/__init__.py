"""The preflight: real ranks prove a launch before node-hours are spent. See :mod:`repro.preflight.launch`.

It stands on the engine (ranks, their launch), on projection (the sizes of a recipe's messages) and on cluster (the
site's table and what a log says), hence above all three, beside :mod:`repro.tracing`.
"""
