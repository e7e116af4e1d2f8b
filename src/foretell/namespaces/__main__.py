"""As a program: `python __main__.py CONTROL ANSWERS LENGTH`, see `processes.main`.

Its package is loaded by path, as `inside/bootstrap` does it, because importing foretell itself costs time.
"""

import importlib
import os
import sys
from types import ModuleType

package = sys.modules["foretell_child"] = ModuleType("foretell_child")
package.__path__ = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
importlib.import_module("foretell_child.namespaces.processes").main()
