"""The one gate that every tool call goes through, whoever asks for it: admission, events, execution."""
