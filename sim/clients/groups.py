"""The groups of consumers in one world: their members, and who looks at them."""

import random
from typing import Final

from sim.clients.group_admin import GroupAdmin
from sim.clients.group_book import GroupBook
from sim.clients.group_script import GroupScript
from sim.clients.group_seat import GroupSeat
from sim.clients.logs import TOPIC
from sim.plan import GroupPlan
from sim.workload import TopicWanted, Workload

_PARTITIONS: Final = 3


class Groups(Workload):
    """Each ends when all others are done and it has read all that they wrote."""

    def topics(self) -> list[TopicWanted]:
        names = sorted({name for group in self.plan.groups for name in _more(group)})
        return [TopicWanted(name, _PARTITIONS) for name in names]

    def begin(self) -> None:
        for number, group in enumerate(self.plan.groups, 1):
            self._begin_group(f"g{number}", group)

    def _begin_group(self, name: str, plan: GroupPlan) -> None:
        scene = self.scene
        places = [(TOPIC, index) for index in range(self.plan.partitions)]
        places += [(more, index) for more in _more(plan) for index in range(_PARTITIONS)]
        book = GroupBook(scene, name, places)

        def are_others_done() -> bool:
            return all(one.is_done for one in scene.processes if not one.name.startswith("group-"))

        for number in range(1, plan.members + 1):
            process = scene.process(f"group-{name}-m{number}")
            seat = GroupSeat(
                scene,
                process,
                book,
                kinds=plan.kinds,
                is_cooperative=plan.is_cooperative,
                topics=self._topics_of(number, book, process.rng),
            )
            process.run(seat.run())
        process = scene.process(f"group-{name}-script")
        is_soon_gone = not self.plan.knobs.isdisjoint({"forgets", "expires"})
        process.run(GroupScript(scene, process, name, is_soon_gone=is_soon_gone).run())
        process = scene.process(f"group-{name}-admin")
        admin = GroupAdmin(scene, process, book, are_others_done=are_others_done)
        process.run(admin.run())
        process.run(admin.ask_all())

    def _topics_of(self, number: int, book: GroupBook, rng: random.Random) -> list[str]:
        """Somebody wants all of them, so that none is left over."""
        if number == 1 or len(book.topics) == 1:
            return book.topics
        chosen = rng.sample(book.topics, rng.randint(1, len(book.topics)))
        return [topic for topic in book.topics if topic in chosen]


def _more(plan: GroupPlan) -> list[str]:
    """Topics that nobody writes to: they are there to be assigned."""
    return [f"more-{number}" for number in range(1, plan.more_topics + 1)]
