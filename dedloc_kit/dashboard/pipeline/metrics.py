"""The numbers of a pipeline for Prometheus."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from dedloc_kit.dashboard.pipeline.schemas import Pipeline
from dedloc_kit.pipeline_state import AGREEING


def pipeline_metrics(pipeline: Pipeline) -> Iterator[Metric]:
    """Of each stage, and of all; nothing while the stages are not known."""
    if not pipeline.stages:
        return
    for name, key, about in (
        ("stage_peers", "holders", "Peers that hold the stage and compute."),
        ("stage_microbatches_per_second", "throughput", "That all who hold the stage pass."),
        ("stage_waiting_calls", "queue", "Calls that wait at all who hold the stage."),
        ("stage_global_step", "step", "That half of those who hold the stage have reached."),
    ):
        family = GaugeMetricFamily(f"dedloc_{name}", about, labels=["stage"])
        for stage in pipeline.stages:
            family.add_metric([str(stage.number)], getattr(stage, key))
        yield family
    about = f"Of whom {AGREEING} drivers or more say that they answer wrongly."
    family = GaugeMetricFamily("dedloc_stage_accused_peers", about, labels=["stage"])
    for stage in pipeline.stages:
        family.add_metric([str(stage.number)], sum(peer.accusers >= AGREEING for peer in stage.peers))
    yield family
    passed = "That the slowest stage passes."
    yield GaugeMetricFamily("dedloc_bottleneck_microbatches_per_second", passed, pipeline.throughput)
    yield GaugeMetricFamily("dedloc_drivers", "Who send microbatches through all stages.", len(pipeline.drivers))
