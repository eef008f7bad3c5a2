"""The topics of the metadata image, for group coordinators."""

from collections.abc import Callable, Collection, Mapping

from moldau.groups.consumer.subscriptions import TopicSize
from moldau.metadata.image import Image, Topic


class ImageTopics:
    """The topics of the current image. Shared by all group coordinators of the broker."""

    def __init__(self, image: Callable[[], Image]) -> None:
        self._image = image
        self._seen: Mapping[str, Topic] | None = None
        self._version = 0
        self._names: Collection[str] = ()

    @property
    def version(self) -> int:
        # Images share the map of topics if no topic changed.
        topics = self._image().topics
        if topics is not self._seen:
            self._seen = topics
            self._version += 1
            self._names = tuple(name for name, topic in topics.items() if not topic.internal)
        return self._version

    def topic(self, name: str) -> TopicSize | None:
        found = self._image().topic(name)
        return None if found is None else TopicSize(found.topic_id, len(found.partitions))

    def names(self) -> Collection[str]:
        return self._names if self.version else ()
