"""`tinkex chat`: the command, the conversation, its answers, and what can be typed beside them."""
