from benchmarks.beside import CASES, COLD, SHAPE_CASES, Aim, Case, aims

ALL = (*CASES, *SHAPE_CASES)


def limits(metric: str) -> list[tuple[str, float, bool]]:
    (case,) = [one for one in ALL if one.metric == metric]
    return [(aim.ratio, aim.limit, aim.at_least) for aim in aims(case)]


def test_every_case_has_a_metric_of_its_own() -> None:
    metrics = [case.metric for case in ALL]
    assert len(set(metrics)) == len(metrics)


def test_one_and_three_brokers_take_the_same_rows_with_both_policies() -> None:
    rows = {
        (brokers, flush): [
            case.row.key for case in CASES if (case.brokers, case.flush) == (brokers, flush)
        ]
        for brokers in (1, 3)
        for flush in ("never", "always")
    }
    assert rows[1, "never"] == rows[3, "never"]
    assert rows[1, "always"] == rows[3, "always"]
    # Reading does not depend on when what is read was flushed.
    assert [key for key in rows[1, "never"] if not key.startswith("consume")] == rows[1, "always"]


def test_rows_aim_at_half_as_much_again_and_some_at_three_times() -> None:
    assert limits("beside.1.never.produce.1024.16KB") == [("ratio", 1.5, True)]
    assert limits("beside.3.always.small") == [("ratio", 3, True)]
    assert limits("beside.1.always.transactions.8") == [("ratio", 3, True)]
    assert limits("beside.3.never.lone") == [("p50_ratio", 0.7, False), ("p99_ratio", 0.5, False)]


def test_a_rate_that_is_given_is_no_target() -> None:
    assert limits("beside.1.never.paced") == []


def test_the_name_of_an_aim_says_where_and_how() -> None:
    (aim,) = aims(Case(row=COLD, brokers=3, flush="never"))
    assert aim == Aim(
        name=f"three brokers, flush=never: {COLD.name}", ratio="ratio", limit=1.5, at_least=True
    )
