"""Split documents into sentences, and sentences into token ids."""
