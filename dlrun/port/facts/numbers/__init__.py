"""What is known of numbers: which expressions are one number, lists of them, texts that show them."""
