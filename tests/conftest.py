"""What every test may rely on, whoever started the test run."""

import signal

# A shell that starts a job in the background lets it ignore Ctrl-C, and children inherit that.
# Tests that interrupt a command need the ordinary behaviour.
signal.signal(signal.SIGINT, signal.default_int_handler)
