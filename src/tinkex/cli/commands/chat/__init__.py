"""`tinkex chat`: the command, the conversation, its answers, and its slash commands."""
