"""Makes a small cased BERT with random weights, as a folder of transformers.

The arguments are a vocabulary file and the folder to write.
"""

import sys

import torch
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

vocabulary, out = sys.argv[1:]
torch.manual_seed(0)
tokenizer = BertTokenizerFast(vocabulary, do_lower_case=False)
config = BertConfig(
    vocab_size=len(tokenizer),
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=512,
)
BertForSequenceClassification(config).save_pretrained(out)
tokenizer.save_pretrained(out)
