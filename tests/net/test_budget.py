"""The budget of request bytes: shares of clients, and turns when there is no room."""

from moldau.net.budget import Account, ByteBudget


def test_one_client_takes_what_it_needs_while_there_is_plenty() -> None:
    budget = ByteBudget(1000)
    one = Account(budget, "a")
    one.acquire(499)
    assert not one.is_full
    one.acquire(1)
    assert one.is_full
    assert not budget.exhausted


def test_a_client_with_a_quarter_waits_when_half_is_used_and_others_go_on() -> None:
    budget = ByteBudget(1000)
    greedy, modest = Account(budget, "a"), Account(budget, "b")
    greedy.acquire(600)
    assert greedy.is_full
    assert not modest.is_full
    modest.acquire(250)
    assert modest.is_full
    modest.release(1)
    assert not modest.is_full


def test_a_user_has_one_share_from_all_addresses() -> None:
    budget = ByteBudget(1000)
    accounts = [Account(budget, f"a{number}") for number in range(5)]
    for account in accounts:
        account.log_in("User:greedy")
        account.acquire(100)
    other = Account(budget, "b")
    other.log_in("User:other")
    assert all(account.is_full for account in accounts)
    assert not other.is_full


def test_the_share_of_an_address_is_that_of_all_its_users() -> None:
    budget = ByteBudget(1000)
    for number in range(5):
        account = Account(budget, "a")
        account.log_in(f"User:{number}")
        account.acquire(100)
    assert account.is_full


def test_before_its_login_a_client_uses_another_budget() -> None:
    budget = ByteBudget(16_000)
    unknown = Account(budget, "a")
    unknown.await_login()
    unknown.acquire(1000)
    unknown.mute(600)
    assert unknown.awaits_login
    assert unknown.is_full
    assert (budget.used, budget.before_login.used, budget.before_login.muted) == (0, 1000, 600)
    unknown.log_in("User:alice")
    assert not unknown.awaits_login
    assert (budget.used, budget.muted) == (1000, 600)
    assert (budget.before_login.used, budget.before_login.muted) == (0, 0)
    unknown.close()
    assert (budget.used, budget.muted) == (0, 0)


def test_one_at_a_time_may_exceed_a_full_share() -> None:
    budget = ByteBudget(1000)
    first, second, third = (Account(budget, name) for name in "abc")
    woken: list[str] = []
    first.acquire(1000)
    assert first.has_turn()
    assert first.has_turn()
    assert not second.has_turn()
    assert second.wait(lambda: woken.append("second"))
    assert third.wait(lambda: woken.append("third"))
    first.acquire(500)
    assert woken == []
    first.yield_turn()
    assert woken == ["second", "third"]
    assert second.has_turn()
    assert not third.has_turn()
    assert not first.has_turn()
    second.close()
    assert third.has_turn()


def test_who_waits_for_its_share_is_called_when_that_has_room() -> None:
    budget = ByteBudget(1000)
    one, same, other = Account(budget, "a"), Account(budget, "a"), Account(budget, "b")
    woken: list[str] = []
    one.acquire(300)
    other.acquire(400)
    assert one.has_turn()
    assert not same.has_turn()
    assert same.wait(lambda: woken.append("same"))
    other.release(50)
    assert woken == []
    one.release(51)
    assert woken == ["same"]


def test_who_waits_for_its_share_is_called_when_there_is_plenty_again() -> None:
    budget = ByteBudget(1000)
    one, other = Account(budget, "a"), Account(budget, "b")
    woken: list[str] = []
    one.acquire(400)
    other.acquire(200)
    assert one.wait(lambda: woken.append("one"))
    other.release(101)
    assert woken == ["one"]
    assert not one.wait(lambda: None)


def test_nothing_is_remembered_of_clients_that_left() -> None:
    budget = ByteBudget(1000)
    for number in range(3):
        account = Account(budget, f"a{number}")
        account.log_in("User:alice")
        account.acquire(100)
        account.close()
    assert budget.used == 0
    assert budget._clients == {}
