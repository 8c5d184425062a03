"""How many workers the load needs: Serve's own rule, but a batch brings no worker up.

Nobody waits for a batch, so it has the workers that others need, and the last one as long as it lasts. Knows the
counts that workers report (`Worker.record_autoscaling_stats`).
"""

from typing import Any

from ray.serve.config import AutoscalingContext

BATCH = "batch"
"""The name of a worker's count of batches' requests."""


def without_batches(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """Returns how many workers there should be, and no state; Serve applies its bounds and delays."""
    if not context.current_num_replicas:
        return context.target_num_replicas, {}
    batches = sum((context.aggregated_metrics or {}).get(BATCH, {}).values())
    assert context.config is not None
    others = max(context.total_num_requests - batches, 0.0)
    return max(others / context.config.get_target_ongoing_requests(), 1.0 if batches else 0.0), {}
