"""One exposition of those of several processes."""

from moldau.model.prometheus_merge import merged
from moldau.model.prometheus_text import counter, gauge, histogram, render


async def test_series_name_their_process_and_type_and_help_are_there_once():
    ones = counter("a_total", "All of it.")
    ones.add(1, {"x": "}"})
    first = render([ones, gauge("b", "With a \\ and\nmore.", 2)])
    second = render([gauge("b", "With a \\ and\nmore.", 3), gauge("c", "C.", 4)])
    assert (await merged({"1": first, "2": second}, "process")).split("\n") == [
        "# HELP a_total All of it.",
        "# TYPE a_total counter",
        'a_total{process="1",x="}"} 1',
        "# HELP b With a \\\\ and\\nmore.",
        "# TYPE b gauge",
        'b{process="1"} 2',
        'b{process="2"} 3',
        "# HELP c C.",
        "# TYPE c gauge",
        'c{process="2"} 4',
        "",
    ]


async def test_all_parts_of_a_histogram_stay_below_its_head():
    took = histogram("d_seconds", "D.")
    took.samples.append(("_bucket", {"le": "+Inf"}, 1))
    took.samples.append(("_count", {}, 1))
    text = await merged({"1": render([took]), "2": render([took])}, "process")
    assert text.split("\n")[2:6] == [
        'd_seconds_bucket{process="1",le="+Inf"} 1',
        'd_seconds_count{process="1"} 1',
        'd_seconds_bucket{process="2",le="+Inf"} 1',
        'd_seconds_count{process="2"} 1',
    ]


async def test_what_a_client_chose_as_a_name_divides_no_line():
    named = gauge("e", "E.")
    named.add(1, {"topic": "a\u2028b c{d"})
    text = await merged({"1": render([named])}, "process")
    assert text.split("\n")[2] == 'e{process="1",topic="a\u2028b c{d"} 1'


async def test_nothing_stays_nothing():
    assert await merged({}, "process") == ""
    assert await merged({"1": ""}, "process") == ""
