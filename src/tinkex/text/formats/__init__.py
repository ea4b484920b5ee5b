"""Parses a chat model's text as it arrives: reasoning, content and tool calls.

pieces     what is found
tags       tags in text that arrives in parts
thinking   reasoning between tags
json_calls, xml_calls, channels    tool calls, by the format a template teaches
chosen     which of these a template asks for
"""
