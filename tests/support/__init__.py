"""What several test modules share: cases, models, comparisons, paths to the operators."""
