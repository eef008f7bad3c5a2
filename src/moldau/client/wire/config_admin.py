"""Requests about the settings of brokers: of one, or of the whole cluster.

They go over our own connections: librdkafka does not return descriptions, and the settings of a
broker must be asked of that broker.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from moldau.client.errors import NotFoundError
from moldau.client.wire.client import WireAdmin, check_code
from moldau.model.topology import Endpoint
from moldau.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from moldau.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalConfig,
    IncrementalConfigsResource,
)

_BROKER: Final = 4
_SET: Final = 0
_DELETE: Final = 1
SOURCES: Final[Mapping[int, str]] = {
    2: "broker",
    3: "cluster",
    4: "start",
    5: "default",
}
"""Where a value was set, by its number in the protocol."""


class SettingInfo(NamedTuple):
    """A setting of a broker, with its value in force."""

    name: str
    value: str | None
    source: str
    read_only: bool
    documentation: str


class ConfigAdmin(WireAdmin):
    """Settings of brokers; `broker` None: of the whole cluster."""

    def addresses(self) -> dict[int, str]:
        """HOST:PORT of each broker, by its id."""
        found = self._retry(self._client.brokers)
        return {one.node_id: str(Endpoint(one.host, one.port)) for one in found}

    def responsive_broker(self) -> int:
        """The id of a broker that responds."""
        return self._retry(self._client.responsive_broker)

    def settings(
        self, broker: int | None = None, names: Sequence[str] | None = None
    ) -> list[SettingInfo]:
        """All or these, by name. Raises NotFoundError for an unknown broker."""
        resource = DescribeConfigsResource(
            resource_type=_BROKER,
            resource_name=_name(broker),
            configuration_keys=None if names is None else list(names),
        )
        request = DescribeConfigsRequest(resources=[resource], include_documentation=True)

        def attempt() -> DescribeConfigsResponse:
            client = self._client
            if broker is None:
                return client.any_broker().request(request, DescribeConfigsResponse)
            client.brokers()
            connection = client.broker(broker)
            if connection is None:
                raise NotFoundError(
                    f"there is no broker {broker} in this cluster",
                    hint="list them: moldau broker list",
                )
            return connection.request(request, DescribeConfigsResponse)

        (result,) = self._retry(attempt).results
        check_code(result.error_code, "read settings", result.error_message)
        return sorted(
            SettingInfo(
                name=each.name,
                value=each.value,
                source=SOURCES.get(each.config_source, "default"),
                read_only=each.read_only,
                documentation=each.documentation or "",
            )
            for each in result.configs
        )

    def change(
        self,
        broker: int | None,
        values: Mapping[str, str],
        removed: Sequence[str] = (),
        *,
        validate_only: bool = False,
    ) -> None:
        """Set these settings, and remove others. Raises RejectedError."""
        changes = [
            *(IncrementalConfig(name=name, config_operation=_SET, value=values[name])
              for name in values),
            *(IncrementalConfig(name=name, config_operation=_DELETE, value=None)
              for name in removed),
        ]  # fmt: skip
        resource = IncrementalConfigsResource(
            resource_type=_BROKER, resource_name=_name(broker), configs=changes
        )
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)

        def attempt() -> None:
            found = self._client.request_controller(request, IncrementalAlterConfigsResponse)
            (result,) = found.responses
            check_code(result.error_code, "change settings", result.error_message)

        self._retry(attempt)


def _name(broker: int | None) -> str:
    return "" if broker is None else str(broker)
