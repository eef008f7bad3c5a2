"""Kafka listeners by name: stored with the broker, and each client sees those of its own."""

from moldau.metadata.apply import apply
from moldau.metadata.broker_rules import register_broker
from moldau.metadata.commands import RegisterBroker
from moldau.metadata.image import EMPTY_IMAGE, Image, brokers_at
from moldau.metadata.records import decode_record, encode_record
from moldau.metadata.snapshot import decode_image, encode_image
from moldau.model.ids import BrokerId
from moldau.model.topology import Endpoint


def registered(image: Image, number: int, *names: str) -> Image:
    command = RegisterBroker(
        id=BrokerId(number),
        host=f"main{number}",
        port=9092,
        incarnation=f"directory-{number}",
        listeners=tuple((name, Endpoint(f"{name}{number}", 1000 + number)) for name in names),
    )
    for record in register_broker(command, image):
        image = apply(image, decode_record(encode_record(record)))
    assert register_broker(command, image) == [], "a repeated request changes nothing"
    return image


def addresses(image: Image, listener: str) -> dict[int, str]:
    return {one.id: f"{one.host}:{one.port}" for one in brokers_at(image, listener).values()}


def test_brokers_with_one_listener_have_one_address_for_all() -> None:
    image = registered(registered(EMPTY_IMAGE, 1), 2)
    for name in ("", "kafka", "http", "public"):
        assert addresses(image, name) == {1: "main1:9092", 2: "main2:9092"}


def test_clients_see_the_addresses_of_their_listener() -> None:
    image = registered(registered(EMPTY_IMAGE, 1, "inside", "public"), 2, "inside", "public")
    image = decode_image(encode_image(image))
    assert addresses(image, "public") == {1: "public1:1001", 2: "public2:1002"}
    assert addresses(image, "inside") == {1: "inside1:1001", 2: "inside2:1002"}
    assert addresses(image, "http") == {1: "main1:9092", 2: "main2:9092"}


def test_a_broker_without_the_listener_is_left_out_but_one_with_a_single_address_is_not() -> None:
    image = registered(EMPTY_IMAGE, 1, "inside", "public")
    image = registered(registered(image, 2, "inside"), 3)
    assert addresses(image, "public") == {1: "public1:1001", 3: "main3:9092"}


def test_listeners_change_with_the_next_registration() -> None:
    image = registered(EMPTY_IMAGE, 1, "inside", "public")
    image = registered(image, 1)
    assert addresses(image, "public") == {1: "main1:9092"}
