"""Deletes single settings of topics, over our own connections."""

from collections.abc import Sequence
from typing import Final

from moldau.client.wire.client import WireAdmin, check_code
from moldau.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalConfig,
    IncrementalConfigsResource,
)

_TOPIC: Final = 2
_DELETE: Final = 1


class TopicSettings(WireAdmin):
    """Settings of topics."""

    def delete(self, topics: Sequence[str], setting: str, *, validate_only: bool = False) -> None:
        """The topics have the default again; with `validate_only`, whether they could."""
        change = IncrementalConfig(name=setting, config_operation=_DELETE, value=None)
        resources = [
            IncrementalConfigsResource(resource_type=_TOPIC, resource_name=topic, configs=[change])
            for topic in topics
        ]
        request = IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)

        def attempt() -> None:
            response = self._client.request_controller(request, IncrementalAlterConfigsResponse)
            for each in response.responses:
                check_code(
                    each.error_code, f"change topic {each.resource_name}", each.error_message
                )

        self._retry(attempt)
