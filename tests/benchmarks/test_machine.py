import pytest

from benchmarks.machine import PGO_GAIN, hot_path, python_build


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("'--enable-optimizations' '--with-lto'", "built with PGO and LTO"),
        ("'--enable-optimizations' '--with-lto=full'", "built with PGO and LTO"),
        ("'--enable-optimizations' '--with-lto=no'", "built with PGO"),
        ("'--with-lto'", f"built with LTO ({PGO_GAIN})"),
        ("", f"built without PGO and LTO ({PGO_GAIN})"),
    ],
)
def test_how_a_python_was_built_is_in_its_arguments(arguments: str, text: str) -> None:
    assert python_build(arguments) == text


def test_a_broker_says_itself_whether_it_is_compiled() -> None:
    assert hot_path("moldau 0.1.0 compiled") == "compiled"
    assert hot_path("moldau 0.1.0 (compiled)") == "compiled"
    assert hot_path("moldau 0.1.0") == "pure Python"
