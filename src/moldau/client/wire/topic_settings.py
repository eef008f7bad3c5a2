"""Deletes single settings of topics, over our own connections."""

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

    def delete(self, topic: str, setting: str) -> None:
        """The topic has the default again."""
        change = IncrementalConfig(name=setting, config_operation=_DELETE, value=None)
        resource = IncrementalConfigsResource(
            resource_type=_TOPIC, resource_name=topic, configs=[change]
        )
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)

        def attempt() -> None:
            response = self._client.request_controller(request, IncrementalAlterConfigsResponse)
            for each in response.responses:
                check_code(each.error_code, f"change topic {topic}", each.error_message)

        self._retry(attempt)
