"""All that knows the Hugging Face hub: what commit a branch is at, and files at a commit, verified and cached."""
