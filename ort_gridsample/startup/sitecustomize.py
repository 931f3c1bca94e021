"""Replace onnxruntime's class of sessions in a program that ``ort-gridsample exec`` starts.

The command adds the folder of this file to PYTHONPATH, because Python imports a module of this name
whenever it starts, in child processes as well. The class is replaced when the program first reads
it, so that a program that opens no session imports nothing of this package.

This file may run in any Python, also in one where this package is not installed. It therefore
imports only what Python has already imported, and uses the syntax of older releases.
"""

import os
import sys
from _thread import get_ident

#: The words of the command's options, separated by commas.
VARIABLE = "ORT_GRIDSAMPLE_EXEC"
PACKAGE = "onnxruntime"
#: The modules whose attribute is replaced.
MODULES = (PACKAGE, "onnxruntime.capi.onnxruntime_inference_collection")
NAME = "InferenceSession"


class Replacement:
    """The class that replaces onnxruntime's, which is imported when the program first reads it."""

    def __init__(self, options):
        self.options = options
        self.session_class = None
        #: The threads that are importing this package, which needs onnxruntime's class itself.
        self.importing_threads = set()
        self.is_reported = False

    def get(self, original):
        """Return the replacement of ``original``; itself if there is none."""
        if self.session_class is not None:
            return self.session_class
        thread = get_ident()
        if thread in self.importing_threads:
            return original
        self.importing_threads.add(thread)
        try:
            from ort_gridsample.session.replacement import session_class

            self.session_class = session_class(self.options)
        except Exception as error:
            self.report(error)
            self.session_class = original
        finally:
            self.importing_threads.discard(thread)
        return self.session_class

    def report(self, error):
        """Print once in this process why the class is not replaced."""
        if self.is_reported or sys.stderr is None:
            return
        self.is_reported = True
        reason = "%s: %s" % (type(error).__name__, error)  # noqa: UP031
        if getattr(error, "name", None) == "ort_gridsample":
            reason = "ort_gridsample is not installed in it"
        message = "ort-gridsample: %s uses onnxruntime's own sessions, because %s\n"
        sys.stderr.write(message % (sys.executable, " ".join(reason.split())))


def replace_class(replacement):
    """Let both modules of onnxruntime compute their attribute."""
    for name in MODULES:
        module = sys.modules.get(name)
        is_replaced = isinstance(getattr(type(module), NAME, None), property)  # by a reload
        if module is not None and NAME in vars(module) and not is_replaced:
            replace_attribute(module, replacement)


def replace_attribute(module, replacement):
    """Let ``module`` compute the attribute.

    Meanwhile the namespace of the module has onnxruntime's class, because ``import *`` needs the
    name.
    """
    former_class = type(module)

    def set_value(module, value):
        module.__class__ = former_class
        vars(module)[NAME] = value

    def get(module):
        original = vars(module)[NAME]
        value = replacement.get(original)
        # Another thread may have read or set the attribute meanwhile.
        if type(module) is not lazy_class:
            return vars(module)[NAME]
        # The functions of the module that defines the class use onnxruntime's.
        is_final = get_ident() not in replacement.importing_threads
        if is_final and module.__name__ != original.__module__:
            set_value(module, value)
        return value

    def delete(module):
        module.__class__ = former_class
        del vars(module)[NAME]

    attributes = {NAME: property(get, set_value, delete)}
    lazy_class = type(former_class.__name__, (former_class,), attributes)
    module.__class__ = lazy_class


class Finder:
    """Find onnxruntime as the other finders do, and replace its class after the import."""

    def __init__(self, replacement):
        self.replacement = replacement

    def find_spec(self, name, path=None, target=None):
        if name != PACKAGE:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    self.hook(spec.loader)
                return spec
        return None

    def hook(self, loader):
        """Replace the class after ``loader`` has executed the module."""
        execute = loader.exec_module

        def exec_module(module):
            execute(module)
            replace_class(self.replacement)

        loader.exec_module = exec_module


def import_next():
    """Import the module of this name that Python would import without the folder of this file."""
    folder = os.path.dirname(__file__)
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    this_module = sys.modules.pop(__name__)
    try:
        __import__(__name__)
    except ImportError as error:
        if getattr(error, "name", __name__) != __name__:
            raise
        sys.modules[__name__] = this_module


if __name__ == "sitecustomize":
    if os.environ.get(VARIABLE):
        sys.meta_path.insert(0, Finder(Replacement(os.environ[VARIABLE])))
    import_next()
