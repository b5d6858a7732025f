"""Parts of make_fixtures.py: corpus, tokenizers, models, training, goldens."""
