"""A long text of the compiler beside the source it came from: searched, folded, mapped line by line."""
