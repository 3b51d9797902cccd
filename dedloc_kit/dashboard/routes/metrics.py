"""The run's numbers for Prometheus; `dashboards/grafana` draws them."""

from collections.abc import Callable, Iterator

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from dedloc_kit.dashboard.experts.metrics import expert_metrics
from dedloc_kit.dashboard.http.openapi import answering
from dedloc_kit.dashboard.live.view import RunView
from dedloc_kit.dashboard.pipeline.metrics import pipeline_metrics
from dedloc_kit.dashboard.schemas import Rounds, RunState
from dedloc_kit.records.orders import Checks

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class RunCollector(Collector):
    """Tells how the run stands when it is asked. Nothing about single people: a page is for that, not a time series."""

    def __init__(self, view: RunView, current: Callable[[], RunState], viewers: Callable[[], int]) -> None:
        self._view, self._current, self._viewers = view, current, viewers

    def collect(self) -> Iterator[Metric]:
        state = self._current()
        rounds = self._view.rounds(after=max(0, state.step - 1))
        run = GaugeMetricFamily("dedloc_run_info", "Always 1; its labels name the run.", labels=["name", "run_id"])
        run.add_metric([state.name, state.run_id], 1)
        status = GaugeMetricFamily("dedloc_status", "1 for the status that the run has now.", labels=["status"])
        status.add_metric([state.status], 1)
        phases = GaugeMetricFamily(
            "dedloc_round_seconds", "Where the newest global step's time went.", labels=["phase"]
        )
        for newest in rounds.rounds[-1:]:
            for phase in ("compute", "gather", "average", "apply"):
                if (seconds := getattr(newest, phase)) is not None:
                    phases.add_metric([phase], seconds)
        yield from (run, status, phases)
        for name, value, about in (
            ("global_step", state.step, "The newest global step."),
            ("total_steps", state.total_steps, "Global steps after which the run is finished."),
            ("global_batch", state.global_batch, "Samples that lead to one global step."),
            ("batch_samples", state.batch.samples, "Samples of the global batch that is filling."),
            ("training_loss", state.loss, "Mean training loss of the newest global step."),
            ("held_out_loss", state.evaluation.last.loss if state.evaluation else None, "Of the newest evaluation."),
            ("volunteers", state.volunteers, "Peers that train now."),
            ("peers", state.peer_count, "Peers in the swarm now, the coordinator included."),
            ("contributors", state.contributor_count, "Everyone who gave samples so far."),
            ("samples_per_second", state.samples_per_second, "Of all who train now."),
            ("seconds_per_step", state.seconds_per_step, "Median time between recent global steps."),
            ("run_eta_seconds", state.run_eta_seconds, "Until the last global step, at the usual pace."),
            ("last_step_timestamp_seconds", state.last_step_time, "When the newest global step was done."),
            ("viewers", self._viewers(), "Who watches the live page."),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"dedloc_{name}", about, value)
        for name, value, about in (
            ("samples", state.samples_total, "Samples that the model learned from."),
            ("device_seconds", state.device_seconds, "Time that all volunteers together were here."),
            ("failed_rounds", rounds.failed_count, "All-reduces that failed and were made up for."),
            ("left_out", rounds.left_out_count, "Times that a peer which was to come does not count in a global step."),
            ("rejected_records", rounds.rejected_count, "Records from the network that were not taken."),
        ):
            yield CounterMetricFamily(f"dedloc_{name}", about, value)
        if state.audits is not None:
            yield from _checked(state.audits, rounds)
        if state.stages is not None:
            yield from pipeline_metrics(self._view.pipeline())
        if state.experts is not None:
            yield from expert_metrics(self._view.experts())


def _checked(audits: Checks, rounds: Rounds) -> Iterator[Metric]:
    """What comes of checking the volunteers' work."""
    for name, value, about in (
        ("audits_passed", audits.passed, "Contributions that were found to be right."),
        ("audits_given_up", audits.given_up, "Contributions that could not be checked."),
        ("convictions", rounds.sent_away_count, "Times that somebody was found to cheat."),
    ):
        yield CounterMetricFamily(f"dedloc_{name}", about, value)
    yield GaugeMetricFamily("dedloc_audited_share", "Of all contributions are checked now.", audits.share)
    yield GaugeMetricFamily("dedloc_sent_away", "Who is away for cheating now.", rounds.sent_away_now)


def routes(view: RunView, current: Callable[[], RunState], viewers: Callable[[], int]) -> APIRouter:
    return prometheus(RunCollector(view, current, viewers))


def prometheus(collector: Collector) -> APIRouter:
    """The route at which this one is asked."""
    router = APIRouter()
    registry = CollectorRegistry()
    registry.register(collector)

    @router.get("/metrics", tags=["metrics"], summary="Numbers for Prometheus", responses=answering("text/plain"))
    def metrics() -> Response:
        return Response(generate_latest(registry), headers={"Content-Type": _CONTENT_TYPE})

    return router
