"""The services of a session: each call is checked by the session's guard, then passed on.

Checks come before anything else. Single objects of a request that are refused get an error of their
own where Kafka gives one; what a client may not describe is left out of lists.
"""
