"""What callers see of the database: a transaction they hand on, and the error it may end with.

Code outside this folder composes functions of the table modules in a transaction. It neither looks
into one nor writes SQL.
"""

from __future__ import annotations

import sqlite3
from typing import TypeAlias

Transaction: TypeAlias = sqlite3.Connection
DatabaseError: TypeAlias = sqlite3.Error
DatabaseUnavailable: TypeAlias = sqlite3.OperationalError
"""The disk or the database cannot do it now: nothing is wrong with what was asked."""
