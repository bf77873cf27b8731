"""The exposition format, read back by Prometheus' own parser."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as read

from holdfast.core.prometheus_text import SECONDS, Family, Histogram, by, one, render


def test_o_counters_gauges_and_labels_are_read_back() -> None:
    page = render(
        [
            one("a_total", "counter", "How many.", 3),
            one("b", "gauge", "How much.", 0.25),
            by("c_total", "counter", "By two.", ("x", "y"), {("p", "q"): 1, ("p", "r"): 2}),
        ]
    )
    found = {family.name: family for family in read(page)}
    assert (
        found["a"].type == "counter"
        and found["a"].documentation == "How many."
        and found["a"].samples[0].value == 3
    )
    assert found["b"].samples[0].value == 0.25
    assert {(s.labels["x"], s.labels["y"]): s.value for s in found["c"].samples} == {
        ("p", "q"): 1,
        ("p", "r"): 2,
    }


@given(st.text(), st.text())
def test_o_any_label_or_help_stays_on_one_line_of_the_page(value: str, help: str) -> None:
    page = render([by("a_total", "counter", help, ("x",), {value: 1})])
    assert page.count("\n") == 3
    [family] = read(
        page.replace("\r", "r").replace("\x85", "r")
    )  # the parser's splitlines takes more for a line than the format does
    assert len(family.samples) == 1


@given(st.lists(st.floats(min_value=0, max_value=100)))
def test_o_a_histogram_counts_each_value_in_every_bucket_that_holds_it(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    [family] = read(render([Family("took_seconds", "histogram", "How long.", histogram)]))
    buckets = {
        float(s.labels["le"]): s.value for s in family.samples if s.name == "took_seconds_bucket"
    }
    assert set(buckets) == {*SECONDS, math.inf}
    assert all(count == sum(value <= bound for value in values) for bound, count in buckets.items())
    [total] = [s.value for s in family.samples if s.name == "took_seconds_sum"]
    assert math.isclose(total, sum(values)) and histogram.count == len(values)


def test_o_a_family_is_shown_as_json_with_the_same_samples() -> None:
    histogram = Histogram((1.0,))
    histogram.add(0.5)
    assert Family("t", "histogram", "h", histogram).show() == {
        "name": "t",
        "kind": "histogram",
        "help": "h",
        "samples": [
            {"name": "t_bucket", "labels": {"le": "1"}, "value": 1},
            {"name": "t_bucket", "labels": {"le": "+Inf"}, "value": 1},
            {"name": "t_sum", "labels": {}, "value": 0.5},
            {"name": "t_count", "labels": {}, "value": 1},
        ],
    }
