"""What a fork server imports last: it looks once, for all workers to come, which libraries they must limit."""

from .limits import look_around

look_around()
