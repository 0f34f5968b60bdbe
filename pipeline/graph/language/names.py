"""Names of what a language model has beside its graph."""

from __future__ import annotations

IDS, EMBEDDED = "input_ids", "inputs_embeds"
"""What a graph takes of each token: its number, or where the table is on the host, its row, as Genie calls it."""
TABLE = "embedding.bin"
"""The file of a table on the host: see :mod:`pipeline.graph.language.host_table`."""
TOKENIZER = "tokenizer.json"
TEMPLATE = "chat_template.jinja"
"""Files in the output of ingest; the template is there where the source has one."""
TOKENS = "tokens"
"""The array of a sample: a conversation, int32 [tokens]."""
ANSWER = "answer"
"""The array of a sample that says where its first answer begins, int32 [1]; there where the template tells."""
MEANS, MIDDLES, JOINED = "_means", "_middles", "_joined"
"""Ends of names of nodes. A product by weights of 4 bits with minima is separated into nodes that are named so."""
BLOCK_MEANS = "block_means_"
"""How the names of constants begin that make the mean of each block."""
TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""The names by which chat templates call special tokens."""
