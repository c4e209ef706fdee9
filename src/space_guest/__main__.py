"""Start the agent: `agent.pyz PORT TOKEN_PATH DEFAULT_USER`."""

import sys

from space_guest.agent import main

sys.exit(main(sys.argv[1:]))
