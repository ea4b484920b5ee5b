"""Found instead of the official package in processes that a program under the alias starts.

`python -m tinkex.alias` puts this folder first on their path. Importing this module installs the
alias, so `tinker` is tinkex there too.
"""

import sys

from tinkex import alias

del sys.modules[__name__]
alias.install()  # the import system hands out what `sys.modules` holds after this
