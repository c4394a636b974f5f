"""What a new plugin is made from: templates of a package's files, and the examples of the interfaces."""
