"""The losses of the protocol: functions of the target tokens' logprobs, summed, never averaged."""
