"""One candidate in, one evaluation out: in this process, in another, or on another machine."""
