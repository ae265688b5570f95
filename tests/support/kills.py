"""A process that is killed before one of its writes."""

import os
import signal

from fedgram.exchange.store.index import Index

WRITES = ("replace", "write", "fsync", "unlink", "rename")  # functions of `os` that change a disk


def killed_before(number, change):
    """Run a change in a child that is killed before its write of this number; return whether it came that far."""
    child = os.fork()
    if not child:
        code = 1
        try:
            _die_before(number)
            change()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, f"the change failed before write {number}"
    return os.WIFSIGNALED(status)


def _die_before(number):
    left = [number]

    def counted(function):
        def called(*arguments, **options):
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return function(*arguments, **options)

        return called

    for name in WRITES:
        setattr(os, name, counted(getattr(os, name)))
    Index._execute = counted(Index._execute)  # transactions begin and end
    Index._do = counted(Index._do)
