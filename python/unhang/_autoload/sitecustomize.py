# mypy: ignore-errors
# ruff: noqa: SIM105, UP004
"""Is in a separate folder while `unhang run` runs, first on PYTHONPATH: every Python that starts then imports it.

It waits for torch to be imported and lets unhang act then. It steps aside for the user's own sitecustomize, and must
not break any Python, however old or bare: hence the plain words, and no import of anything that a start does not
import anyway. It is gone when the run is over.
"""

import os
import sys

try:
    import _thread
except ImportError:  # Python 2
    import thread as _thread


def _say_once(name, message):
    folder = os.environ.get("UNHANG_RUN_FOLDER", "")
    if not folder:
        return
    try:
        os.close(os.open(os.path.join(folder, "said-" + name), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        sys.stderr.write("unhang: " + message + "\n")
    except Exception:
        pass  # said already, or nowhere to say it


class _AfterTorch(object):
    """Finds torch as it would have been found, and acts when it has been imported whole."""

    def __init__(self):
        self._asking = set()

    def find_spec(self, name, path=None, target=None):
        thread = _thread.get_ident()
        if name != "torch" or thread in self._asking:
            return None
        import importlib.util

        self._asking.add(thread)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking.discard(thread)
        # Whoever only asks whether torch is there gets the same answer, and nothing happens.
        loader = getattr(spec, "loader", None)
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return spec

        def exec_module(module):
            _remove(self)
            try:
                del loader.exec_module  # the loader as it was, before torch can look at it
            except AttributeError:
                pass
            execute(module)
            _act()

        try:
            loader.exec_module = exec_module
        except Exception as error:
            _say_once("loader", "torch is imported in an unusual way (" + repr(error) + "): it is left alone")
        return spec


def _wheel():
    """The wheel that the program came from, as `unhang run` wrote it down."""
    try:
        with open(os.path.join(os.environ["UNHANG_RUN_FOLDER"], "wheel")) as file:
            return file.read()
    except Exception:
        return "unhang-*.whl"


def _remove(finder):
    try:
        sys.meta_path.remove(finder)
    except ValueError:
        pass


def _act():
    try:
        from unhang import _run
    except Exception as error:
        _say_once(
            "missing",
            "warning: not used in "
            + sys.executable
            + " ("
            + str(error)
            + "): convolutions are not planned there; install unhang: "
            + sys.executable
            + " -m pip install "
            + _wheel(),
        )
        return
    try:
        _run.after_torch()
    except Exception as error:
        _say_once("failed", "could not be switched on (" + type(error).__name__ + ": " + str(error) + "): left alone")


def _step_aside():
    """Leaves the name to the next sitecustomize there is; its errors are Python's to report, as they always were."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
    finally:
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


if sys.version_info >= (3, 9) and os.environ.get("UNHANG_DISABLE", "0") in ("", "0"):
    sys.meta_path.insert(0, _AfterTorch())
_step_aside()
