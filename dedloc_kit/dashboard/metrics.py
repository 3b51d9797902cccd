"""The run's numbers for Prometheus; `dashboards/grafana` draws them."""

from collections.abc import Callable, Iterator
from typing import Any

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from dedloc_kit.dashboard.description import answering

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class RunCollector(Collector):
    """Tells how the run stands when it is asked. Nothing about single people: a page is for that, not a time series."""

    def __init__(self, current: Callable[[], dict[str, Any]], viewers: Callable[[], int]) -> None:
        self._current, self._viewers = current, viewers

    def collect(self) -> Iterator[Metric]:
        state = self._current()
        run = GaugeMetricFamily("dedloc_run_info", "Always 1; its labels name the run.", labels=["name", "run_id"])
        run.add_metric([state["name"], state["run_id"]], 1)
        status = GaugeMetricFamily("dedloc_status", "1 for the status that the run has now.", labels=["status"])
        status.add_metric([state["status"]], 1)
        yield from (run, status)
        evaluation = state["evaluation"]
        for name, value, about in (
            ("global_step", state["step"], "The newest global step."),
            ("total_steps", state["total_steps"], "Global steps after which the run is finished."),
            ("global_batch", state["global_batch"], "Samples that lead to one global step."),
            ("batch_samples", state["batch"]["samples"], "Samples of the global batch that is filling."),
            ("training_loss", state["loss"], "Mean training loss of the newest global step."),
            ("held_out_loss", evaluation["last"]["loss"] if evaluation else None, "Of the newest evaluation."),
            ("volunteers", state["volunteers"], "Peers that train now."),
            ("peers", state["peer_count"], "Peers in the swarm now, the coordinator included."),
            ("contributors", state["contributor_count"], "Everyone who gave samples so far."),
            ("samples_per_second", state["samples_per_second"], "Of all who train now."),
            ("seconds_per_step", state["seconds_per_step"], "Median time between recent global steps."),
            ("last_step_timestamp_seconds", state["last_step_time"], "When the newest global step was done."),
            ("viewers", self._viewers(), "Who watches the live page."),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"dedloc_{name}", about, value)
        yield CounterMetricFamily("dedloc_samples", "Samples that the model learned from.", state["samples_total"])


def routes(current: Callable[[], dict[str, Any]], viewers: Callable[[], int]) -> APIRouter:
    router = APIRouter()
    registry = CollectorRegistry()
    registry.register(RunCollector(current, viewers))

    @router.get("/metrics", tags=["metrics"], summary="Numbers for Prometheus", responses=answering("text/plain"))
    def metrics() -> Response:
        return Response(generate_latest(registry), headers={"Content-Type": _CONTENT_TYPE})

    return router
