"""Owns the groups of consumers in one world: their members, and who looks at them."""

from sim.clients.group_admin import GroupAdmin
from sim.clients.group_book import GroupBook
from sim.clients.group_seat import GroupSeat
from sim.clients.logs import TOPIC
from sim.plan import GroupPlan
from sim.workload import Workload


class Groups(Workload):
    """Each ends when all others are done and it has read all that they wrote."""

    def begin(self) -> None:
        for number, group in enumerate(self.plan.groups, 1):
            self._begin_group(f"g{number}", group)

    def _begin_group(self, name: str, plan: GroupPlan) -> None:
        scene = self.scene
        places = [(TOPIC, index) for index in range(self.plan.partitions)]
        book = GroupBook(scene, name, places)

        def are_others_done() -> bool:
            return all(one.is_done for one in scene.processes if not one.name.startswith("group-"))

        for number in range(1, plan.members + 1):
            process = scene.process(f"group-{name}-m{number}")
            seat = GroupSeat(
                scene, process, book, kinds=plan.kinds, is_cooperative=plan.is_cooperative
            )
            process.run(seat.run())
        process = scene.process(f"group-{name}-admin")
        admin = GroupAdmin(scene, process, book, are_others_done=are_others_done)
        process.run(admin.run())
        process.run(admin.ask_all())
