"""Those who run the cluster in one world, a user of HTTP, and a rogue peer."""

from sim.clients.admin import Admin
from sim.clients.logs import TOPIC
from sim.clients.operator import Operator
from sim.clients.rogue_peer import RoguePeer
from sim.clients.web import Web
from sim.workload import Workload


class Operations(Workload):
    """They judge what they see themselves."""

    def begin(self) -> None:
        cluster, scene, plan = self.cluster, self.scene, self.plan
        if plan.admin:
            process = scene.process("admin")
            load = (TOPIC, plan.partitions, plan.replication)
            process.run(Admin(scene, process, load=load, is_alone=not plan.operator).run())
        if plan.web:
            process = scene.process("web")
            process.run(Web(cluster, scene, process).run())
        if plan.rogue_peer:
            process = scene.process("rogue-peer")
            process.run(RoguePeer(cluster, scene, process).run())
        if plan.operator:
            process = scene.process("operator")
            process.run(Operator(cluster, scene, process).run())
