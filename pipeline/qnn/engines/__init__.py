"""Programs that run language models over contexts: what they read, and what they say of it."""
