"""Turn texts and words into token ids, and features into batches."""
