"""The numbers of a serving swarm for Prometheus."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dedloc_kit.dashboard.serving.schemas import ServingState


class ServingCollector(Collector):
    """Tells how the model is served when it is asked. Nothing about single servers."""

    def __init__(self, current: Callable[[], ServingState], viewers: Callable[[], int]) -> None:
        self._current, self._viewers = current, viewers

    def collect(self) -> Iterator[Metric]:
        state = self._current()
        about = GaugeMetricFamily(
            "dedloc_serving_info", "Always 1; its labels name what is served.", labels=["name", "run_id", "version"]
        )
        about.add_metric([state.name, state.run_id, state.version], 1)
        status = GaugeMetricFamily("dedloc_serving_status", "1 for the status that it has now.", labels=["status"])
        status.add_metric([state.status], 1)
        refused = CounterMetricFamily(
            "dedloc_serving_refused_requests", "Requests that were wrong, by kind.", labels=["kind"]
        )
        for kind, count in state.refused.items():
            refused.add_metric([kind], count)
        yield from (about, status, refused)
        for name, value, text in (
            ("servers", state.server_count, "Peers that hold layers of the model."),
            ("layers", state.layers, "Of the model."),
            ("layers_without_server", state.bare_layers, "Layers that nobody serves."),
            ("layers_with_one_server", state.single_layers, "Layers that one server alone serves."),
            ("sessions", state.sessions, "Of all servers: an answer has one on each server on its way."),
            ("cache_tokens", state.cache_tokens, "That all servers together can remember."),
            ("free_cache_tokens", state.free_tokens, "Of these, for which there is room."),
            ("bottleneck_tokens_per_second", state.speed, "What the worst-served layer passes."),
            ("tokens_per_second", state.tokens_per_second, "Served through all layers in the last half minute."),
            ("viewers", self._viewers(), "Who watches the live page."),
        ):
            yield GaugeMetricFamily(f"dedloc_serving_{name}", text, value)
        yield CounterMetricFamily("dedloc_serving_token_layers", "Tokens times layers that were served.", state.served)
