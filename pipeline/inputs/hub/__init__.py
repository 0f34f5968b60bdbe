"""Everything about the Hugging Face hub: commits of branches, files at a commit with verified hashes, and uploads."""
